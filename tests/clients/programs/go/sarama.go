// The transactional flow of sarama; prints what `scripts/transactional_clients` expects.
package main

import (
	"fmt"
	"sort"
	"strings"

	"github.com/IBM/sarama"
)

func viaSarama(address, topic string) {
	begin := func() sarama.SyncProducer {
		config := sarama.NewConfig()
		config.Version = sarama.V3_6_0_0
		config.Producer.Idempotent = true
		config.Producer.RequiredAcks = sarama.WaitForAll
		config.Producer.Return.Successes = true
		config.Producer.Partitioner = sarama.NewManualPartitioner
		config.Producer.Transaction.ID = topic + "-id"
		config.Net.MaxOpenRequests = 1
		producer, err := sarama.NewSyncProducer([]string{address}, config)
		must(err)
		return producer
	}
	write := func(producer sarama.SyncProducer, label string) error {
		var messages []*sarama.ProducerMessage
		for number := 0; number < 6; number++ {
			value := sarama.StringEncoder(fmt.Sprintf("%s-%d", label, number))
			messages = append(messages, &sarama.ProducerMessage{Topic: topic, Partition: int32(number % 2), Value: value})
		}
		return producer.SendMessages(messages)
	}
	producer := begin()
	must(producer.BeginTxn())
	must(write(producer, "committed"))
	must(producer.CommitTxn())
	must(producer.BeginTxn())
	must(write(producer, "aborted"))
	must(producer.AbortTxn())
	must(producer.BeginTxn())
	must(write(producer, "offsets"))
	offsets := map[string][]*sarama.PartitionOffsetMetadata{topic: {{Partition: 0, Offset: 5}}}
	must(producer.AddOffsetsToTxn(offsets, topic+"-group"))
	must(producer.CommitTxn())

	config := sarama.NewConfig()
	config.Version = sarama.V3_6_0_0
	admin, err := sarama.NewClusterAdmin([]string{address}, config)
	must(err)
	found, err := admin.ListConsumerGroupOffsets(topic+"-group", map[string][]int32{topic: {0}})
	must(err)
	fmt.Println("offset", found.GetBlock(topic, 0).Offset)

	successor := begin()
	must(successor.BeginTxn())
	must(write(successor, "successor"))
	must(successor.CommitTxn())
	for _, one := range []struct {
		name  string
		level sarama.IsolationLevel
	}{{"stable", sarama.ReadCommitted}, {"all", sarama.ReadUncommitted}} {
		config := sarama.NewConfig()
		config.Version = sarama.V3_6_0_0
		config.Consumer.IsolationLevel = one.level
		consumer, err := sarama.NewConsumer([]string{address}, config)
		must(err)
		var values []string
		for partition := int32(0); partition < 2; partition++ {
			reader, err := consumer.ConsumePartition(topic, partition, sarama.OffsetOldest)
			must(err)
			for last := 0; last < 3; {
				message := <-reader.Messages()
				values = append(values, string(message.Value))
				if strings.HasPrefix(string(message.Value), "successor") {
					last++
				}
			}
			must(reader.Close())
		}
		sort.Strings(values)
		fmt.Println(one.name, strings.Join(values, " "))
	}
}
