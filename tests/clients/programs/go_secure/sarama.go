// The steps with sarama.
package main

import (
	"crypto/sha256"
	"crypto/sha512"
	"fmt"
	"hash"
	"time"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
)

type saramaToken string

func (token saramaToken) Token() (*sarama.AccessToken, error) {
	return &sarama.AccessToken{Token: string(token)}, nil
}

type saramaScram struct {
	hash         func() hash.Hash
	conversation *scram.ClientConversation
}

func (s *saramaScram) Begin(user, password, authzID string) error {
	client, err := scram.HashGeneratorFcn(s.hash).NewClient(user, password, authzID)
	if err == nil {
		s.conversation = client.NewConversation()
	}
	return err
}
func (s *saramaScram) Step(challenge string) (string, error) { return s.conversation.Step(challenge) }
func (s *saramaScram) Done() bool                            { return s.conversation.Done() }

func saramaConfig(s step) *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.V3_6_0_0
	config.Producer.Return.Successes = true
	if shown := s.tls(); shown != nil {
		config.Net.TLS.Enable, config.Net.TLS.Config = true, shown
	}
	if s.Mechanism != "" {
		config.Net.SASL.Enable = true
		config.Net.SASL.Mechanism = sarama.SASLMechanism(s.Mechanism)
		config.Net.SASL.User, config.Net.SASL.Password = s.User, s.Password
		config.Net.SASL.TokenProvider = saramaToken(s.Token)
		config.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient {
			if s.Mechanism == "SCRAM-SHA-256" {
				return &saramaScram{hash: sha256.New}
			}
			return &saramaScram{hash: sha512.New}
		}
	}
	return config
}

func viaSarama(s step) (string, error) {
	client, err := sarama.NewClient([]string{s.Address}, saramaConfig(s))
	if err != nil {
		return "", err
	}
	defer client.Close()
	switch s.Action {
	case "echo", "again":
		producer, err := sarama.NewSyncProducerFromClient(client)
		if err != nil {
			return "", err
		}
		defer producer.Close()
		for end := time.Now().Add(time.Duration(s.Seconds) * time.Second); ; time.Sleep(100 * time.Millisecond) {
			message := &sarama.ProducerMessage{Topic: s.Topic, Value: sarama.StringEncoder(s.Text)}
			if _, _, err := producer.SendMessage(message); err != nil {
				return "", err
			}
			if !time.Now().Before(end) {
				break
			}
		}
		if s.Action == "again" {
			return "ok", nil
		}
		consumer, err := sarama.NewConsumerFromClient(client)
		if err != nil {
			return "", err
		}
		reader, err := consumer.ConsumePartition(s.Topic, 0, sarama.OffsetOldest)
		if err != nil {
			return "", err
		}
		for late := time.After(60 * time.Second); ; {
			select {
			case found := <-reader.Messages():
				if string(found.Value) == s.Text {
					return "ok", reader.Close()
				}
			case <-late:
				return "time-out", nil
			}
		}
	}
	admin, err := sarama.NewClusterAdminFromClient(client)
	if err != nil {
		return "", err
	}
	switch s.Action {
	case "users":
		upsert := sarama.AlterUserScramCredentialsUpsert{Name: s.Text, Mechanism: sarama.SCRAM_MECHANISM_SHA_256,
			Iterations: 4096, Salt: []byte("some salt"), Password: []byte("secret")}
		made, err := admin.UpsertUserScramCredentials([]sarama.AlterUserScramCredentialsUpsert{upsert})
		if err != nil || made[0].ErrorCode != sarama.ErrNoError {
			return fmt.Sprint(err, made), nil
		}
		seen, err := admin.DescribeUserScramCredentials([]string{s.Text})
		if err != nil {
			return "", err
		}
		gone, err := admin.DeleteUserScramCredentials([]sarama.AlterUserScramCredentialsDelete{
			{Name: s.Text, Mechanism: sarama.SCRAM_MECHANISM_SHA_256}})
		if err != nil {
			return "", err
		}
		return fmt.Sprint("ok ", len(seen[0].CredentialInfos), " ", gone[0].ErrorCode), nil
	case "acls":
		name := s.Text
		acl := sarama.Acl{Principal: "User:zoe", Host: "*", Operation: sarama.AclOperationRead, PermissionType: sarama.AclPermissionAllow}
		resource := sarama.Resource{ResourceType: sarama.AclResourceTopic, ResourceName: name, ResourcePatternType: sarama.AclPatternLiteral}
		if err := admin.CreateACL(resource, acl); err != nil {
			return "", err
		}
		filter := sarama.AclFilter{ResourceType: sarama.AclResourceTopic, ResourceName: &name,
			ResourcePatternTypeFilter: sarama.AclPatternLiteral, Operation: sarama.AclOperationAny, PermissionType: sarama.AclPermissionAny}
		seen, err := admin.ListAcls(filter)
		if err != nil {
			return "", err
		}
		gone, err := admin.DeleteACL(filter, false)
		return fmt.Sprint("ok ", len(seen), " ", len(gone)), err
	case "quotas":
		entity := []sarama.QuotaEntityComponent{{EntityType: sarama.QuotaEntityUser, MatchType: sarama.QuotaMatchExact, Name: s.Text}}
		op := sarama.ClientQuotasOp{Key: "producer_byte_rate", Value: 4096}
		if err := admin.AlterClientQuotas(entity, op, false); err != nil {
			return "", err
		}
		filter := []sarama.QuotaFilterComponent{{EntityType: sarama.QuotaEntityUser, MatchType: sarama.QuotaMatchExact, Match: s.Text}}
		var seen []sarama.DescribeClientQuotasEntry
		for end := time.Now().Add(time.Minute); len(seen) == 0 && time.Now().Before(end); {
			if seen, err = admin.DescribeClientQuotas(filter, true); err != nil {
				return "", err
			}
		}
		op.Remove = true
		return fmt.Sprint("ok ", len(seen)), admin.AlterClientQuotas(entity, op, false)
	}
	return "-", nil
}
