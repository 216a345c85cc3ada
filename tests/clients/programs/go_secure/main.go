// Steps of `scripts/secure_clients` with Go's clients: reads a JSON list of them, prints an outcome a line.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

type step struct {
	Action, Address, Protocol, Ca, Certificate, Key string
	Mechanism, User, Password, Token, Topic, Text   string
	Seconds                                         int
}

func (s step) tls() *tls.Config {
	if !strings.HasSuffix(s.Protocol, "SSL") {
		return nil
	}
	pem, err := os.ReadFile(s.Ca)
	if err != nil {
		panic(err)
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(pem)
	if s.Certificate != "" {
		shown, err := tls.LoadX509KeyPair(s.Certificate, s.Key)
		if err != nil {
			panic(err)
		}
		config.Certificates = []tls.Certificate{shown}
	}
	return config
}

func main() {
	var steps []step
	if err := json.NewDecoder(os.Stdin).Decode(&steps); err != nil {
		panic(err)
	}
	do := map[string]func(step) (string, error){"franz": viaFranz, "sarama": viaSarama}[os.Args[1]]
	for _, one := range steps {
		outcome, err := do(one)
		if err != nil {
			outcome = err.Error()
		}
		fmt.Println(strings.Join(strings.Fields(outcome), " "))
	}
}
