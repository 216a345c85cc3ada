// A test in Go against a real broker of its own. Run: go mod tidy && go test
package embedded

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// startBroker starts a broker that ends with the test: its stdin is closed then.
func startBroker(t *testing.T) string {
	command := exec.Command("shmbroker", "embedded", "--print-address")
	command.Stderr = os.Stderr
	stdin, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		command.Wait()
	})
	address, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(address)
}

func TestRecordComesBack(t *testing.T) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(startBroker(t)),
		kgo.AllowAutoTopicCreation(),
		kgo.ConsumeTopics("flights"),
		kgo.ConsumerGroup("readers"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	record := &kgo.Record{Topic: "flights", Value: []byte("UA 123")}
	if err := client.ProduceSync(ctx, record).FirstErr(); err != nil {
		t.Fatal(err)
	}
	for {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		for _, record := range fetches.Records() {
			if string(record.Value) != "UA 123" {
				t.Fatalf("not what was sent: %s", record.Value)
			}
			return
		}
	}
}
