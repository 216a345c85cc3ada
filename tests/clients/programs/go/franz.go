// The transactional flow of franz-go; prints what `scripts/transactional_clients` expects.
package main

import (
	"context"
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func viaFranz(address, topic string) {
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	begin := func() *kgo.Client {
		client, err := kgo.NewClient(
			kgo.SeedBrokers(address),
			kgo.TransactionalID(topic+"-id"),
			kgo.RecordPartitioner(kgo.ManualPartitioner()),
		)
		must(err)
		return client
	}
	write := func(client *kgo.Client, label string) error {
		var records []*kgo.Record
		for number := 0; number < 6; number++ {
			value := fmt.Sprintf("%s-%d", label, number)
			records = append(records, &kgo.Record{Topic: topic, Partition: int32(number % 2), Value: []byte(value)})
		}
		return client.ProduceSync(ctx, records...).FirstErr()
	}
	client := begin()
	for _, one := range []struct {
		label string
		end   kgo.TransactionEndTry
	}{{"committed", kgo.TryCommit}, {"aborted", kgo.TryAbort}} {
		must(client.BeginTransaction())
		must(write(client, one.label))
		must(client.EndTransaction(ctx, one.end))
	}

	// a group's session: consume, and commit the place with what was produced
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(address),
		kgo.TransactionalID(topic+"-session"),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ConsumerGroup(topic+"-group"),
		kgo.ConsumeTopics(topic),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	must(err)
	seen := 0
	for seen < 6 {
		fetches := session.PollFetches(ctx)
		must(fetches.Err())
		seen += fetches.NumRecords()
	}
	must(session.Begin())
	must(write(session.Client(), "offsets"))
	isCommitted, err := session.End(ctx, kgo.TryCommit)
	must(err)
	session.Close()
	request := kmsg.NewPtrOffsetFetchRequest()
	request.Group = topic + "-group"
	request.RequireStable = true
	row := kmsg.NewOffsetFetchRequestTopic()
	row.Topic = topic
	row.Partitions = []int32{0}
	request.Topics = append(request.Topics, row)
	plain, err := kgo.NewClient(kgo.SeedBrokers(address), kgo.MaxVersions(nil))
	must(err)
	answer, err := request.RequestWith(ctx, plain)
	must(err)
	fmt.Println("session", seen, isCommitted)
	offset := int64(-1)
	for _, group := range answer.Groups {
		offset = group.Topics[0].Partitions[0].Offset
	}
	for _, found := range answer.Topics {
		offset = found.Partitions[0].Offset
	}
	fmt.Println("offset", offset)

	successor := begin()
	must(successor.BeginTransaction())
	must(write(successor, "successor"))
	must(successor.EndTransaction(ctx, kgo.TryCommit))
	zombie := client.BeginTransaction()
	if zombie == nil {
		zombie = write(client, "zombie")
	}
	if zombie == nil {
		zombie = client.EndTransaction(ctx, kgo.TryCommit)
	}
	if known, ok := zombie.(*kerr.Error); ok {
		fmt.Println("zombie", known.Message)
	} else {
		fmt.Println("zombie", zombie)
	}
	for _, one := range []struct {
		name  string
		level kgo.IsolationLevel
	}{{"stable", kgo.ReadCommitted()}, {"all", kgo.ReadUncommitted()}} {
		reader, err := kgo.NewClient(
			kgo.SeedBrokers(address),
			kgo.ConsumeTopics(topic),
			kgo.FetchIsolationLevel(one.level),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		)
		must(err)
		var values []string
		for last := 0; last < 6; {
			fetches := reader.PollFetches(ctx)
			must(fetches.Err())
			fetches.EachRecord(func(record *kgo.Record) {
				values = append(values, string(record.Value))
				if strings.HasPrefix(string(record.Value), "successor") {
					last++
				}
			})
		}
		sort.Strings(values)
		fmt.Println(one.name, strings.Join(values, " "))
		reader.Close()
	}
}
