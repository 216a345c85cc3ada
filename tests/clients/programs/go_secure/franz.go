// The steps with franz-go and its kadm.
package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

func franzMechanism(s step, isToken bool) sasl.Mechanism {
	who := scram.Auth{User: s.User, Pass: s.Password, IsToken: isToken}
	switch s.Mechanism {
	case "PLAIN":
		return plain.Auth{User: s.User, Pass: s.Password}.AsMechanism()
	case "SCRAM-SHA-256":
		return who.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		return who.AsSha512Mechanism()
	}
	return oauth.Auth{Token: s.Token}.AsMechanism()
}

func franzClient(s step, isToken bool, more ...kgo.Opt) (*kgo.Client, error) {
	options := append(more, kgo.SeedBrokers(s.Address), kgo.RecordRetries(5))
	if config := s.tls(); config != nil {
		options = append(options, kgo.DialTLSConfig(config))
	}
	if s.Mechanism != "" {
		options = append(options, kgo.SASL(franzMechanism(s, isToken)))
	}
	return kgo.NewClient(options...)
}

func viaFranz(s step) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	client, err := franzClient(s, false, kgo.ConsumeTopics(s.Topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return "", err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	record := func() *kgo.Record { return &kgo.Record{Topic: s.Topic, Value: []byte(s.Text)} }
	switch s.Action {
	case "echo":
		if err := client.Ping(ctx); err != nil {
			return "", err
		}
		if err := client.ProduceSync(ctx, record()).FirstErr(); err != nil {
			return "", err
		}
		for {
			fetches := client.PollFetches(ctx)
			if err := fetches.Err(); err != nil {
				return "", err
			}
			for _, found := range fetches.Records() {
				if string(found.Value) == s.Text {
					return "ok", nil
				}
			}
		}
	case "again":
		for end := time.Now().Add(time.Duration(s.Seconds) * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			if err := client.ProduceSync(ctx, record()).FirstErr(); err != nil {
				return "", err
			}
		}
		return "ok", nil
	case "users":
		made, err := admin.AlterUserSCRAMs(ctx, nil, []kadm.UpsertSCRAM{{
			User: s.Text, Mechanism: kadm.ScramSha256, Iterations: 4096, Password: "secret"}})
		if err == nil {
			err = made.Error()
		}
		if err != nil {
			return "", err
		}
		seen, err := admin.DescribeUserSCRAMs(ctx, s.Text)
		if err != nil {
			return "", err
		}
		found := seen[s.Text]
		gone, err := admin.AlterUserSCRAMs(ctx, []kadm.DeleteSCRAM{{User: s.Text, Mechanism: kadm.ScramSha256}}, nil)
		if err == nil {
			err = gone.Error()
		}
		return fmt.Sprint("ok ", len(found.CredInfos), found.CredInfos[0].Iterations), err
	case "acls":
		acl := kadm.NewACLs().Topics(s.Text).ResourcePatternType(kadm.ACLPatternLiteral).
			Operations(kadm.OpRead).Allow("User:zoe").AllowHosts("*")
		made, err := admin.CreateACLs(ctx, acl)
		if err != nil || made[0].Err != nil {
			return fmt.Sprint(err, made), err
		}
		seen, err := admin.DescribeACLs(ctx, acl)
		if err != nil {
			return "", err
		}
		gone, err := admin.DeleteACLs(ctx, acl)
		return fmt.Sprint("ok ", len(seen[0].Described), " ", len(gone[0].Deleted)), err
	case "quotas":
		entity := kadm.ClientQuotaEntity{{Type: "user", Name: &s.Text}}
		entry := kadm.AlterClientQuotaEntry{Entity: entity, Ops: []kadm.AlterClientQuotaOp{{Key: "producer_byte_rate", Value: 4096}}}
		if _, err := admin.AlterClientQuotas(ctx, []kadm.AlterClientQuotaEntry{entry}); err != nil {
			return "", err
		}
		filter := []kadm.DescribeClientQuotaComponent{{Type: "user", MatchName: &s.Text, MatchType: kadm.QuotasMatchType(0)}}
		var seen kadm.DescribedClientQuotas
		for len(seen) == 0 && ctx.Err() == nil { // told to brokers a moment later
			if seen, err = admin.DescribeClientQuotas(ctx, true, filter); err != nil {
				return "", err
			}
		}
		entry.Ops[0].Remove = true
		_, err := admin.AlterClientQuotas(ctx, []kadm.AlterClientQuotaEntry{entry})
		return fmt.Sprint("ok ", seen[0].Values), err
	case "tokens":
		made, err := admin.CreateDelegationToken(ctx, kadm.CreateDelegationToken{})
		if err != nil {
			return "", err
		}
		holder := s
		holder.User, holder.Password = made.TokenID, base64.StdEncoding.EncodeToString(made.HMAC)
		other, err := franzClient(holder, true)
		if err != nil {
			return "", err
		}
		defer other.Close()
		for err = other.Ping(ctx); err != nil && ctx.Err() == nil; err = other.Ping(ctx) {
			time.Sleep(100 * time.Millisecond)
		}
		if err != nil {
			return "", err
		}
		if err := other.ProduceSync(ctx, record()).FirstErr(); err != nil {
			return "", err
		}
		seen, err := admin.DescribeDelegationTokens(ctx)
		if err != nil {
			return "", err
		}
		_, err = admin.ExpireDelegationToken(ctx, made.HMAC, -1)
		return fmt.Sprint("ok ", len(seen) > 0), err
	}
	return "-", nil
}
