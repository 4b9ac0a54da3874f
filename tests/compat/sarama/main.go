// What tests/compat/test_programs.py asks of sarama: one job, given as JSON, told line by line as JSON.
//
// "versions" does everything once for each Kafka that sarama can be told it talks to, from which it takes the
// versions of its requests. "produce" sends numbers until it is done, "member" reads as a member of a group
// until SIGTERM.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/IBM/sarama"
)

type job struct {
	Do, Bootstrap, Topic, Group     string
	Partitions, Count, First, Pause int
	Producers                       []string
	SessionMs                       int `json:"session_ms"`
}

type row = [3]any // partition, offset, value

const firstMs = 1_600_000_000_000 // the timestamp of a producer's first record; each next one is a second later

var (
	ctx    = context.Background()
	tell   = json.NewEncoder(os.Stdout)
	codecs = map[string]sarama.CompressionCodec{
		"none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP, "snappy": sarama.CompressionSnappy,
		"lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD,
	}
	kafkas = []sarama.KafkaVersion{
		sarama.V0_11_0_0, sarama.V1_0_0_0, sarama.V1_1_0_0, sarama.V2_0_0_0, sarama.V2_1_0_0, sarama.V2_2_0_0,
		sarama.V2_3_0_0, sarama.V2_4_0_0, sarama.V2_6_0_0, sarama.V2_8_0_0, sarama.V3_6_0_0, sarama.V4_1_0_0,
	}
)

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func config(kafka sarama.KafkaVersion) *sarama.Config {
	c := sarama.NewConfig()
	c.Version = kafka
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	c.Consumer.Offsets.AutoCommit.Enable = false
	c.Consumer.MaxWaitTime = 50 * time.Millisecond
	c.Consumer.Group.Heartbeat.Interval = 100 * time.Millisecond
	c.Metadata.AllowAutoTopicCreation = false
	return c
}

func producer(j job, kafka sarama.KafkaVersion, codec string) sarama.AsyncProducer {
	c := config(kafka)
	c.Producer.RequiredAcks, c.Net.MaxOpenRequests = sarama.WaitForAll, 1
	// After a lost connection sarama's idempotent producer cuts its messages into other batches. Where the
	// first of them was stored already, the new one is no repetition: "out of order sequence number".
	c.Producer.Idempotent = j.Pause == 0
	c.Producer.Compression, c.Producer.Partitioner = codecs[codec], sarama.NewManualPartitioner
	c.Producer.Return.Successes, c.Producer.MaxMessageBytes = true, 4<<20
	c.Producer.Retry.Max, c.Producer.Retry.Backoff = 1000, 50*time.Millisecond
	if j.Do == "produce" { // the only broker is away for a while
		c.Metadata.Retry.Max, c.Metadata.Retry.Backoff = 1000, 50*time.Millisecond
	}
	return must(sarama.NewAsyncProducer([]string{j.Bootstrap}, c))
}

// Numbers first..first+count-1, each behind the name of its producer, to the partitions in turn.
func produce(p sarama.AsyncProducer, topic, name string, partitions, first, count, pauseMs int) {
	go func() {
		for n := first; n < first+count; n++ {
			p.Input() <- &sarama.ProducerMessage{
				Topic: topic, Partition: int32(n % partitions), Metadata: n,
				Value:     sarama.StringEncoder(name + "-" + strconv.Itoa(n)),
				Timestamp: time.UnixMilli(firstMs + int64(n)*1000),
			}
			time.Sleep(time.Duration(pauseMs) * time.Millisecond)
		}
	}()
	for range count {
		select {
		case sent := <-p.Successes():
			if pauseMs > 0 {
				check(tell.Encode([]any{"sent", sent.Metadata}))
			}
		case failed := <-p.Errors():
			panic(failed)
		}
	}
	check(p.Close())
}

func errorOf(p sarama.AsyncProducer, message *sarama.ProducerMessage) string {
	p.Input() <- message
	select {
	case <-p.Successes():
		return "sent"
	case failed := <-p.Errors():
		for name, known := range map[string]error{
			"MESSAGE_TOO_LARGE": sarama.ErrMessageSizeTooLarge, "UNKNOWN_TOPIC_OR_PARTITION": sarama.ErrUnknownTopicOrPartition,
		} {
			if errors.Is(failed.Err, known) {
				return name
			}
		}
		return failed.Err.Error()
	}
}

// Reads until it has so many records, commits them and leaves.
type reader struct {
	mutex  sync.Mutex
	wanted int
	found  []row
	before func() // what is done while the group is still there
	leave  context.CancelFunc
}

func (*reader) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (*reader) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (r *reader) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for m := range claim.Messages() {
		r.mutex.Lock()
		if len(r.found) < r.wanted {
			r.found = append(r.found, row{m.Partition, m.Offset, string(m.Value)})
			session.MarkMessage(m, "")
			if len(r.found) == r.wanted {
				time.Sleep(200 * time.Millisecond) // a heartbeat or two
				session.Commit()
				r.before()
				r.leave()
			}
		}
		r.mutex.Unlock()
	}
	return nil
}

func once(j job, topic string, kafka sarama.KafkaVersion) map[string]any {
	facts := map[string]any{"kafka": kafka.String()}
	client := must(sarama.NewClient([]string{j.Bootstrap}, config(kafka)))
	admin := must(sarama.NewClusterAdminFromClient(client))
	defer admin.Close()
	text := func(s string) *string { return &s }
	check(admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: int32(j.Partitions), ReplicationFactor: 1,
		ConfigEntries: map[string]*string{"max.message.bytes": text("100000"), "retention.ms": text("-1")}}, false))

	var group sync.WaitGroup
	var producers []string
	for _, codec := range j.Producers {
		if codec == "zstd" && !kafka.IsAtLeast(sarama.V2_1_0_0) { // sarama refuses it
			continue
		}
		producers = append(producers, codec)
		group.Add(1)
		go func() {
			defer group.Done()
			produce(producer(j, kafka, codec), topic, codec, j.Partitions, 0, j.Count, 0)
		}()
	}
	group.Wait()
	facts["producers"] = producers
	all := j.Count * len(producers)

	consumer := must(sarama.NewConsumerFromClient(client))
	var read []row
	for p := range j.Partitions {
		from := must(consumer.ConsumePartition(topic, int32(p), sarama.OffsetOldest))
		for range all / j.Partitions {
			m := <-from.Messages()
			read = append(read, row{m.Partition, m.Offset, string(m.Value)})
		}
		check(from.Close())
	}
	facts["read"] = read

	name := "group of " + topic
	var halves [2][]row
	for half := range halves {
		limit, leave := context.WithTimeout(ctx, time.Minute)
		r := &reader{wanted: all / 2, leave: leave, before: func() {
			facts["state"] = must(admin.DescribeConsumerGroups([]string{name}))[0].State
		}}
		member := must(sarama.NewConsumerGroup([]string{j.Bootstrap}, name, config(kafka)))
		for limit.Err() == nil {
			if err := member.Consume(limit, []string{topic}, r); err != nil && limit.Err() == nil {
				panic(err)
			}
		}
		check(member.Close())
		halves[half] = r.found
	}
	facts["halves"] = halves

	offsets := func(at int64) map[int]int64 {
		found := map[int]int64{}
		for p := range j.Partitions {
			found[p] = must(client.GetOffset(topic, int32(p), at))
		}
		return found
	}
	facts["at_time"] = offsets(firstMs + int64(j.Count/2)*1000)
	lag, ends := int64(0), offsets(sarama.OffsetNewest)
	for p := range j.Partitions {
		committed := must(admin.ListConsumerGroupOffsets(name, map[string][]int32{topic: {int32(p)}}))
		lag += ends[p] - committed.GetBlock(topic, int32(p)).Offset
	}
	facts["lag"] = lag

	value := func() string {
		asked := sarama.ConfigResource{Type: sarama.TopicResource, Name: topic, ConfigNames: []string{"retention.ms"}}
		return must(admin.DescribeConfig(asked))[0].Value
	}
	// Before Kafka 1.1 it asks for DescribeConfigs v0, which is not offered (nor by Kafka 4).
	if kafka.IsAtLeast(sarama.V1_1_0_0) {
		keep := text("100000")
		configs := []string{value()}
		check(admin.AlterConfig(sarama.TopicResource, topic, map[string]*string{"retention.ms": text("600000000"), "max.message.bytes": keep}, false))
		configs = append(configs, value())
		if kafka.IsAtLeast(sarama.V2_3_0_0) {
			check(admin.IncrementalAlterConfig(sarama.TopicResource, topic, map[string]sarama.IncrementalAlterConfigsEntry{
				"retention.ms": {Operation: sarama.IncrementalAlterConfigsOperationDelete}}, false))
		} else {
			check(admin.AlterConfig(sarama.TopicResource, topic, map[string]*string{"max.message.bytes": keep}, false))
		}
		facts["configs"] = append(configs, value())
	}

	if kafka.IsAtLeast(sarama.V1_0_0_0) {
		check(admin.CreatePartitions(topic, int32(j.Partitions+1), nil, false))
		facts["partitions"] = len(must(admin.DescribeTopics([]string{topic}))[0].Partitions)
	}
	if kafka.IsAtLeast(sarama.V2_0_0_0) { // DescribeLogDirs v0 is not offered, either
		must(admin.DescribeLogDirs([]int32{1}))
	}
	check(admin.DeleteRecords(topic, map[int32]int64{0: facts["at_time"].(map[int]int64)[0]}))
	facts["starts"] = offsets(sarama.OffsetOldest)

	p := producer(j, kafka, "none")
	facts["too_large"] = errorOf(p, &sarama.ProducerMessage{Topic: topic, Value: sarama.ByteEncoder(make([]byte, 200_000))})
	facts["no_topic"] = errorOf(p, &sarama.ProducerMessage{Topic: "no-" + topic, Value: sarama.StringEncoder("x")})
	check(p.Close())

	must(admin.ListConsumerGroups())
	if kafka.IsAtLeast(sarama.V2_4_0_0) {
		check(admin.DeleteConsumerGroupOffset(name, topic, 0))
	}
	if kafka.IsAtLeast(sarama.V1_1_0_0) {
		check(admin.DeleteConsumerGroup(name))
	}
	check(admin.DeleteTopic(topic))
	facts["deleted"] = must(admin.DescribeTopics([]string{topic}))[0].Err == sarama.ErrUnknownTopicOrPartition
	return facts
}

// The clock that Python's time.monotonic reads.
func monotonic() float64 {
	var now syscall.Timespec
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, 1, uintptr(unsafe.Pointer(&now)), 0)
	return float64(now.Sec) + float64(now.Nsec)/1e9
}

// A member of a group that reads, tells and commits, one partition at a time.
type member struct {
	mutex sync.Mutex
	job   job
}

func (*member) report(what string, value any) { check(tell.Encode([]any{what, monotonic(), value})) }

func (m *member) Setup(session sarama.ConsumerGroupSession) error {
	m.report("assigned", session.Claims()[m.job.Topic])
	return nil
}

func (m *member) Cleanup(session sarama.ConsumerGroupSession) error {
	m.report("revoked", session.Claims()[m.job.Topic])
	return nil
}

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for first := range claim.Messages() {
		found, last := []row{{first.Partition, first.Offset, string(first.Value)}}, first
		for more := true; more && len(found) < 50; {
			select {
			case next, open := <-claim.Messages():
				if more = open; open {
					found, last = append(found, row{next.Partition, next.Offset, string(next.Value)}), next
				}
			default:
				more = false
			}
		}
		m.mutex.Lock()
		m.report("got", found)
		time.Sleep(time.Duration(m.job.Pause) * time.Millisecond)
		session.MarkMessage(last, "")
		session.Commit()
		m.report("committed", map[int32]int64{last.Partition: last.Offset + 1})
		m.mutex.Unlock()
	}
	return nil
}

func join(j job) {
	stop, _ := signal.NotifyContext(ctx, syscall.SIGTERM)
	c := config(sarama.V2_8_0_0)
	c.Consumer.Group.Session.Timeout = time.Duration(j.SessionMs) * time.Millisecond
	c.Consumer.Group.Heartbeat.Interval = c.Consumer.Group.Session.Timeout / 6
	group, m := must(sarama.NewConsumerGroup([]string{j.Bootstrap}, j.Group, c)), &member{job: j}
	for stop.Err() == nil {
		if err := group.Consume(stop, []string{j.Topic}, m); err != nil && stop.Err() == nil {
			m.report("error", err.Error())
		}
	}
	check(group.Close())
	m.report("closed", nil)
}

func main() {
	var j job
	check(json.Unmarshal([]byte(strings.Join(os.Args[1:], " ")), &j))
	switch j.Do {
	case "versions":
		for n, kafka := range kafkas {
			check(tell.Encode(once(j, fmt.Sprintf("%s-%d", j.Topic, n), kafka)))
		}
	case "produce":
		produce(producer(j, sarama.V2_8_0_0, j.Producers[0]), j.Topic, j.Producers[0], j.Partitions, j.First, j.Count, j.Pause)
	case "member":
		join(j)
	}
}
