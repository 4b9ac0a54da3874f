// What tests/compat/test_programs.py asks of franz-go: one job, given as JSON, told line by line as JSON.
//
// "versions" does everything once for each set of versions: each API is asked with its lowest version that the
// broker serves, then with the next one, up to the highest. "produce" sends numbers until it is done, "member"
// reads as a member of a group until SIGTERM.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

type job struct {
	Do, Bootstrap, Topic, Group            string
	Partitions, Count, First, Limit, Pause int
	Producers                              []string
	SessionMs                              int `json:"session_ms"`
	Blind                                  bool
}

type row = [3]any // partition, offset, value

const firstMs = 1_600_000_000_000 // the timestamp of a producer's first record; each next one is a second later

var (
	ctx    = context.Background()
	tell   = json.NewEncoder(os.Stdout)
	codecs = map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		panic(err)
	}
}

func client(j job, versions *kversion.Versions, opts ...kgo.Opt) *kgo.Client {
	opts = append(opts, kgo.SeedBrokers(j.Bootstrap), kgo.DisableClientMetrics(), kgo.MetadataMinAge(50*time.Millisecond))
	if versions != nil {
		opts = append(opts, kgo.MaxVersions(versions))
	}
	c, err := kgo.NewClient(opts...)
	check(err)
	return c
}

// Numbers first..first+count-1, each behind the name of its producer, to the partitions in turn.
func produce(c *kgo.Client, topic, name string, partitions, first, count, pauseMs int) {
	var group sync.WaitGroup
	var mutex sync.Mutex
	for n := first; n < first+count; n++ {
		group.Add(1)
		c.Produce(ctx, &kgo.Record{
			Topic: topic, Partition: int32(n % partitions), Value: []byte(name + "-" + strconv.Itoa(n)),
			Timestamp: time.UnixMilli(firstMs + int64(n)*1000),
		}, func(_ *kgo.Record, err error) {
			check(err)
			mutex.Lock()
			defer mutex.Unlock()
			if pauseMs > 0 {
				check(tell.Encode([]any{"sent", n}))
			}
			group.Done()
		})
		time.Sleep(time.Duration(pauseMs) * time.Millisecond)
	}
	check(c.Flush(ctx))
	group.Wait()
}

func rows(fetches kgo.Fetches) (found []row) {
	for _, e := range fetches.Errors() {
		check(e.Err)
	}
	fetches.EachRecord(func(r *kgo.Record) { found = append(found, row{r.Partition, r.Offset, string(r.Value)}) })
	return found
}

func poll(c *kgo.Client, atLeast int) (found []row) {
	limit, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	for len(found) < atLeast {
		found = append(found, rows(c.PollRecords(limit, atLeast-len(found)))...)
	}
	return found
}

// Every version that the broker offers of each API, by number.
func offered(j job) map[int16][2]int16 {
	c := client(j, nil)
	defer c.Close()
	answer, err := kmsg.NewPtrApiVersionsRequest().RequestWith(ctx, c)
	check(err)
	found := map[int16][2]int16{}
	for _, key := range answer.ApiKeys {
		found[key.ApiKey] = [2]int16{key.MinVersion, key.MaxVersion}
	}
	found[0] = [2]int16{3, found[0][1]} // what is below is offered for old clients' sake, and refused
	return found
}

func versions(j job) {
	ranges := offered(j)
	for step := int16(0); ; step++ {
		vs, more := new(kversion.Versions), false
		for key, r := range ranges {
			next := r[0] + step
			if key == 1 { // kgo fetches by topics' ids once Metadata has them, which is one step later
				next = max(r[0], next-1)
			}
			vs.SetMaxKeyVersion(key, min(next, r[1]))
			more = more || next <= r[1]
		}
		if !more {
			return
		}
		check(tell.Encode(once(j, fmt.Sprintf("%s-%d", j.Topic, step), vs)))
	}
}

func p[T any](value T) *T { return &value }

func once(j job, topic string, vs *kversion.Versions) map[string]any {
	c := client(j, vs)
	defer c.Close()
	broker := c.Broker(1)
	failed := map[string][]int16{}
	// Asks the broker itself, as kgo may route to a controller that old versions do not name.
	ask := func(name string, request kmsg.Request) kmsg.Response {
		answer, err := broker.RetriableRequest(ctx, request)
		if err != nil {
			panic(fmt.Sprintf("%s v%d: %v", name, request.GetVersion(), err))
		}
		failed[name] = append(failed[name], errorsOf(reflect.ValueOf(answer).Elem())...)
		return answer
	}
	facts := map[string]any{"producers": j.Producers, "codes": failed}

	create := kmsg.NewPtrCreateTopicsRequest()
	create.Topics = []kmsg.CreateTopicsRequestTopic{{Topic: topic, NumPartitions: int32(j.Partitions), ReplicationFactor: 1,
		Configs: []kmsg.CreateTopicsRequestTopicConfig{{Name: "max.message.bytes", Value: p("100000")}, {Name: "retention.ms", Value: p("-1")}}}}
	create.TimeoutMillis = 20_000
	ask("CreateTopics", create)

	var group sync.WaitGroup
	for _, codec := range j.Producers {
		group.Add(1)
		go func() {
			defer group.Done()
			producer := client(j, vs, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(codecs[codec]))
			defer producer.Close()
			produce(producer, topic, codec, j.Partitions, 0, j.Count, 0)
		}()
	}
	group.Wait()
	all := j.Count * len(j.Producers)

	reader := client(j, vs, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(50*time.Millisecond))
	read := poll(reader, all)
	reader.Close()
	facts["read"] = read

	name := "group of " + topic
	var halves [2][]row
	for half := range halves {
		member := client(j, vs, kgo.ConsumeTopics(topic), kgo.ConsumerGroup(name), kgo.DisableAutoCommit(), kgo.FetchMaxWait(50*time.Millisecond),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.HeartbeatInterval(100*time.Millisecond))
		halves[half] = poll(member, all/2)
		time.Sleep(200 * time.Millisecond) // a heartbeat or two
		check(member.CommitUncommittedOffsets(ctx))
		if half == 0 {
			describe := kmsg.NewPtrDescribeGroupsRequest()
			describe.Groups = []string{name}
			facts["state"] = ask("DescribeGroups", describe).(*kmsg.DescribeGroupsResponse).Groups[0].State
		}
		member.Close()
	}
	facts["halves"] = halves

	offsets := func(timestamp int64) map[int32]int64 {
		request := kmsg.NewPtrListOffsetsRequest()
		request.ReplicaID = -1
		one := kmsg.NewListOffsetsRequestTopic()
		one.Topic = topic
		for n := range j.Partitions {
			place := kmsg.NewListOffsetsRequestTopicPartition()
			place.Partition, place.Timestamp, place.CurrentLeaderEpoch = int32(n), timestamp, -1
			one.Partitions = append(one.Partitions, place)
		}
		request.Topics = append(request.Topics, one)
		found := map[int32]int64{}
		for _, place := range ask("ListOffsets", request).(*kmsg.ListOffsetsResponse).Topics[0].Partitions {
			found[place.Partition] = place.Offset
		}
		return found
	}
	facts["at_time"] = offsets(firstMs + int64(j.Count/2)*1000)
	ends := offsets(-1)

	committed := kmsg.NewPtrOffsetFetchRequest()
	var numbers []int32
	for n := range j.Partitions {
		numbers = append(numbers, int32(n))
	}
	committed.Group = name
	committed.Topics = []kmsg.OffsetFetchRequestTopic{{Topic: topic, Partitions: numbers}}
	byGroup := kmsg.NewOffsetFetchRequestGroup()
	byGroup.Group, byGroup.MemberEpoch = name, -1
	byGroup.Topics = []kmsg.OffsetFetchRequestGroupTopic{{Topic: topic, Partitions: numbers}}
	committed.Groups = []kmsg.OffsetFetchRequestGroup{byGroup}
	lag := int64(0)
	answer := ask("OffsetFetch", committed).(*kmsg.OffsetFetchResponse)
	for _, t := range answer.Topics {
		for _, place := range t.Partitions {
			lag += ends[place.Partition] - place.Offset
		}
	}
	for _, g := range answer.Groups {
		for _, place := range g.Topics[0].Partitions {
			lag += ends[place.Partition] - place.Offset
		}
	}
	facts["lag"] = lag

	epochs := kmsg.NewPtrOffsetForLeaderEpochRequest()
	epochs.ReplicaID = -1
	epochs.Topics = []kmsg.OffsetForLeaderEpochRequestTopic{{Topic: topic, Partitions: []kmsg.OffsetForLeaderEpochRequestTopicPartition{{CurrentLeaderEpoch: -1}}}}
	ask("OffsetForLeaderEpoch", epochs)

	config := func() string {
		request := kmsg.NewPtrDescribeConfigsRequest()
		request.Resources = []kmsg.DescribeConfigsRequestResource{{ResourceType: kmsg.ConfigResourceTypeTopic, ResourceName: topic, ConfigNames: []string{"retention.ms"}}}
		return *ask("DescribeConfigs", request).(*kmsg.DescribeConfigsResponse).Resources[0].Configs[0].Value
	}
	configs := []string{config()}
	alter := kmsg.NewPtrAlterConfigsRequest()
	alter.Resources = []kmsg.AlterConfigsRequestResource{{ResourceType: kmsg.ConfigResourceTypeTopic, ResourceName: topic, Configs: []kmsg.AlterConfigsRequestResourceConfig{
		{Name: "retention.ms", Value: p("600000000")}, {Name: "max.message.bytes", Value: p("100000")}}}}
	ask("AlterConfigs", alter)
	configs = append(configs, config())
	change := kmsg.NewPtrIncrementalAlterConfigsRequest()
	change.Resources = []kmsg.IncrementalAlterConfigsRequestResource{{ResourceType: kmsg.ConfigResourceTypeTopic, ResourceName: topic, Configs: []kmsg.IncrementalAlterConfigsRequestResourceConfig{
		{Name: "retention.ms", Op: kmsg.IncrementalAlterConfigOpDelete}}}}
	ask("IncrementalAlterConfigs", change)
	facts["configs"] = append(configs, config())

	partitions := kmsg.NewPtrCreatePartitionsRequest()
	partitions.Topics = []kmsg.CreatePartitionsRequestTopic{{Topic: topic, Count: int32(j.Partitions + 1)}}
	partitions.TimeoutMillis = 20_000
	ask("CreatePartitions", partitions)
	meta := kmsg.NewPtrMetadataRequest()
	meta.Topics = []kmsg.MetadataRequestTopic{{Topic: &topic}}
	facts["partitions"] = len(ask("Metadata", meta).(*kmsg.MetadataResponse).Topics[0].Partitions)
	described := kmsg.NewPtrDescribeTopicPartitionsRequest()
	described.Topics = []kmsg.DescribeTopicPartitionsRequestTopic{{Topic: topic}}
	described.ResponsePartitionLimit = 100
	ask("DescribeTopicPartitions", described)
	directories := kmsg.NewPtrDescribeLogDirsRequest()
	directories.Topics = []kmsg.DescribeLogDirsRequestTopic{{Topic: topic, Partitions: numbers}}
	ask("DescribeLogDirs", directories)
	writers := kmsg.NewPtrDescribeProducersRequest()
	writers.Topics = []kmsg.DescribeProducersRequestTopic{{Topic: topic, Partitions: numbers}}
	facts["writers"] = len(ask("DescribeProducers", writers).(*kmsg.DescribeProducersResponse).Topics[0].Partitions[0].ActiveProducers)

	first := kmsg.NewPtrDeleteRecordsRequest()
	keepFrom := offsets(firstMs + int64(j.Count/2)*1000)[0]
	first.Topics = []kmsg.DeleteRecordsRequestTopic{{Topic: topic, Partitions: []kmsg.DeleteRecordsRequestTopicPartition{{Partition: 0, Offset: keepFrom}}}}
	first.TimeoutMillis = 20_000
	ask("DeleteRecords", first)
	facts["starts"] = offsets(-2)

	producer := client(j, vs, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchMaxBytes(4<<20), kgo.UnknownTopicRetries(0), kgo.ProducerBatchCompression(kgo.NoCompression()))
	facts["too_large"] = errorName(producer.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: make([]byte, 200_000)}).FirstErr())
	facts["no_topic"] = errorName(producer.ProduceSync(ctx, &kgo.Record{Topic: "no-" + topic, Value: []byte("x")}).FirstErr())
	producer.Close()

	for _, request := range others(name, topic) {
		ask(kmsg.NameForKey(request.Key()), request)
	}
	missing := kmsg.NewPtrMetadataRequest()
	missing.Topics = []kmsg.MetadataRequestTopic{{Topic: &topic}}
	facts["deleted"] = errorsOf(reflect.ValueOf(ask("Metadata after", missing)).Elem())
	return facts
}

// What has no part in a client's life but that operators ask.
func others(group, topic string) (asked []kmsg.Request) {
	add := func(request kmsg.Request) { asked = append(asked, request) }
	find := kmsg.NewPtrFindCoordinatorRequest()
	find.CoordinatorKey, find.CoordinatorKeys = group, []string{group}
	add(find)
	add(kmsg.NewPtrListGroupsRequest())
	offsets := kmsg.NewPtrOffsetDeleteRequest()
	offsets.Group = group
	offsets.Topics = []kmsg.OffsetDeleteRequestTopic{{Topic: topic, Partitions: []kmsg.OffsetDeleteRequestTopicPartition{{Partition: 0}}}}
	add(offsets)
	groups := kmsg.NewPtrDeleteGroupsRequest()
	groups.Groups = []string{group}
	add(groups)
	add(kmsg.NewPtrApiVersionsRequest())
	producer := kmsg.NewPtrInitProducerIDRequest()
	producer.ProducerID, producer.ProducerEpoch = -1, -1
	add(producer)
	add(kmsg.NewPtrDescribeClusterRequest())
	add(kmsg.NewPtrListConfigResourcesRequest())
	transactions := kmsg.NewPtrListTransactionsRequest()
	transactions.DurationFilterMillis = -1
	add(transactions)
	elect := kmsg.NewPtrElectLeadersRequest()
	elect.Topics = []kmsg.ElectLeadersRequestTopic{{Topic: topic, Partitions: []int32{0}}}
	add(elect)
	cancel := kmsg.NewPtrAlterPartitionAssignmentsRequest()
	cancel.Topics = []kmsg.AlterPartitionAssignmentsRequestTopic{{Topic: topic, Partitions: []kmsg.AlterPartitionAssignmentsRequestTopicPartition{{Partition: 0}}}}
	add(cancel)
	add(kmsg.NewPtrListPartitionReassignmentsRequest())
	gone := kmsg.NewPtrUnregisterBrokerRequest()
	gone.BrokerID = 7
	add(gone)
	hand := kmsg.NewPtrSASLHandshakeRequest()
	hand.Mechanism = "SCRAM-SHA-256"
	add(hand)
	add(kmsg.NewPtrSASLAuthenticateRequest())
	rules := kmsg.NewPtrDescribeACLsRequest()
	rules.ResourceType, rules.Operation, rules.PermissionType = kmsg.ACLResourceTypeAny, kmsg.ACLOperationAny, kmsg.ACLPermissionTypeAny
	rules.ResourcePatternType = kmsg.ACLResourcePatternTypeAny
	add(rules)
	rule := kmsg.NewCreateACLsRequestCreation()
	rule.ResourceType, rule.ResourceName, rule.Principal, rule.Host = kmsg.ACLResourceTypeTopic, topic, "User:a", "*"
	rule.Operation, rule.PermissionType, rule.ResourcePatternType = kmsg.ACLOperationRead, kmsg.ACLPermissionTypeAllow, kmsg.ACLResourcePatternTypeLiteral
	create := kmsg.NewPtrCreateACLsRequest()
	create.Creations = []kmsg.CreateACLsRequestCreation{rule}
	add(create)
	filter := kmsg.NewDeleteACLsRequestFilter()
	filter.ResourceType, filter.ResourceName, filter.Operation = kmsg.ACLResourceTypeTopic, &topic, kmsg.ACLOperationAny
	filter.PermissionType, filter.ResourcePatternType = kmsg.ACLPermissionTypeAny, kmsg.ACLResourcePatternTypeLiteral
	remove := kmsg.NewPtrDeleteACLsRequest()
	remove.Filters = []kmsg.DeleteACLsRequestFilter{filter}
	add(remove)
	add(kmsg.NewPtrDescribeClientQuotasRequest())
	quota := kmsg.NewPtrAlterClientQuotasRequest()
	quota.Entries = []kmsg.AlterClientQuotasRequestEntry{{Entity: []kmsg.AlterClientQuotasRequestEntryEntity{{Type: "user", Name: p("a")}},
		Ops: []kmsg.AlterClientQuotasRequestEntryOp{{Key: "producer_byte_rate", Value: 1e6}}}}
	add(quota)
	add(kmsg.NewPtrDescribeUserSCRAMCredentialsRequest())
	user := kmsg.NewPtrAlterUserSCRAMCredentialsRequest()
	user.Upsertions = []kmsg.AlterUserSCRAMCredentialsRequestUpsertion{{Name: "a", Mechanism: 1, Iterations: 4096, Salt: make([]byte, 16), SaltedPassword: make([]byte, 32)}}
	add(user)
	topics := kmsg.NewPtrDeleteTopicsRequest()
	topics.TopicNames = []string{topic}
	topics.Topics = []kmsg.DeleteTopicsRequestTopic{{Topic: &topic}}
	topics.TimeoutMillis = 20_000
	add(topics)
	return asked
}

// Every error code of an answer but 0, wherever it stands.
func errorsOf(value reflect.Value) []int16 {
	found := []int16{}
	switch value.Kind() {
	case reflect.Struct:
		for i := range value.NumField() {
			if value.Type().Field(i).Name == "ErrorCode" {
				if code := int16(value.Field(i).Int()); code != 0 {
					found = append(found, code)
				}
			} else {
				found = append(found, errorsOf(value.Field(i))...)
			}
		}
	case reflect.Slice:
		for i := range value.Len() {
			found = append(found, errorsOf(value.Index(i))...)
		}
	}
	return found
}

func errorName(err error) string {
	var known *kerr.Error
	if errors.As(err, &known) {
		return known.Message
	}
	return fmt.Sprint(err)
}

// The clock that Python's time.monotonic reads.
func monotonic() float64 {
	var now syscall.Timespec
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, 1, uintptr(unsafe.Pointer(&now)), 0)
	return float64(now.Sec) + float64(now.Nsec)/1e9
}

func member(j job) {
	stop, _ := signal.NotifyContext(ctx, syscall.SIGTERM)
	report := func(what string, value any) { check(tell.Encode([]any{what, monotonic(), value})) }
	told := func(what string) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, places map[string][]int32) { report(what, places[j.Topic]) }
	}
	session := time.Duration(j.SessionMs) * time.Millisecond
	c := client(j, nil, kgo.ConsumeTopics(j.Topic), kgo.ConsumerGroup(j.Group), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.SessionTimeout(session), kgo.HeartbeatInterval(session/6),
		kgo.Balancers(kgo.RangeBalancer()), kgo.FetchMaxWait(50*time.Millisecond),
		kgo.OnPartitionsAssigned(told("assigned")), kgo.OnPartitionsRevoked(told("revoked")), kgo.OnPartitionsLost(told("revoked")))
	for stop.Err() == nil {
		limit, cancel := context.WithTimeout(stop, 100*time.Millisecond)
		fetches := c.PollRecords(limit, 50)
		cancel()
		records := fetches.Records()
		if len(records) > 0 {
			next, found := map[int32]int64{}, []row{}
			for _, r := range records {
				next[r.Partition] = r.Offset + 1
				found = append(found, row{r.Partition, r.Offset, string(r.Value)})
			}
			report("got", found)
			time.Sleep(time.Duration(j.Pause) * time.Millisecond)
			if err := c.CommitRecords(ctx, records...); err == nil {
				report("committed", next)
			} else {
				report("refused", err.Error())
			}
		}
		c.AllowRebalance()
	}
	c.Close()
	report("closed", nil)
}

func main() {
	var j job
	check(json.Unmarshal([]byte(strings.Join(os.Args[1:], " ")), &j))
	switch j.Do {
	case "versions":
		versions(j)
	case "produce":
		var limit *kversion.Versions
		if j.Blind { // a client of the days before ApiVersions: it sends what Kafka 0.11 took
			limit = new(kversion.Versions)
			kversion.V0_11_0().EachMaxKeyVersion(func(key, version int16) {
				if key != 18 {
					limit.SetMaxKeyVersion(key, version)
				}
			})
		}
		c := client(j, limit, kgo.RecordPartitioner(kgo.ManualPartitioner()))
		produce(c, j.Topic, j.Producers[0], j.Partitions, j.First, j.Count, j.Pause)
		c.Close()
	case "member":
		member(j)
	}
}
