// A service whose producer the hooks of plugins/go audit: it sends JSON, and writes what its promises were told.
//
// The job's `outcomes` file gets a line for each event: a acknowledged, f failed, - neither.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"millrace/audit"
)

type job struct {
	Bootstrap, Topic, Case, Outcomes string
	Events                           int
	CA, User, Password               string
	GoOn                             string // a file that the service waits for
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// past is the first event's time in the cases `past` and `broken`. Its hour is over, and can be judged.
var past = time.UnixMilli(1_431_856_800_000) // 2015-05-17T10:00Z

func (j job) isPast() bool { return j.Case == "past" || j.Case == "broken" }

// record returns an event. One in a hundred of the case `large` is larger than client and broker allow. The JSON of
// one in a thousand of the case `broken` ends too early.
func (j job) record(n int) *kgo.Record {
	value := fmt.Sprintf(`{"n": %d}`, n)
	if j.Case == "large" && n%100 == 7 {
		value += strings.Repeat(" ", 2_000_000)
	}
	if j.Case == "broken" && n%1000 == 7 {
		value = value[:len(value)-1]
	}
	r := &kgo.Record{Topic: j.Topic, Key: fmt.Appendf(nil, "k%d", n%1009), Value: []byte(value)}
	if j.isPast() {
		r.Timestamp = past.Add(time.Duration(n) * time.Millisecond)
	}
	if j.Case == "forward" {
		r.Headers = []kgo.RecordHeader{{Key: "trace"}, {Key: "millrace.audit", Value: make([]byte, 29)},
			{Key: "millrace.audit", Value: []byte("other")}}
	}
	return r
}

func (j job) client(audited *audit.Hooks) *kgo.Client {
	options := []kgo.Opt{
		kgo.SeedBrokers(j.Bootstrap), kgo.WithHooks(audited), kgo.ProduceRequestTimeout(3 * time.Second),
	}
	if j.Case != "slow" { // which waits for its broker as long as that takes
		options = append(options, kgo.UnknownTopicRetries(0), kgo.RecordRetries(3))
	}
	if j.Case != "slow" && !j.isPast() { // the timeout counts from an event's time
		options = append(options, kgo.RecordDeliveryTimeout(5*time.Second))
	}
	if j.Case == "close" {
		options = append(options, kgo.ManualFlushing(), kgo.MaxBufferedRecords(j.Events))
	}
	if j.Case == "transactions" {
		options = append(options, kgo.TransactionalID("checkout"))
	}
	if j.User != "" {
		pem, err := os.ReadFile(j.CA)
		check(err)
		trusted := x509.NewCertPool()
		trusted.AppendCertsFromPEM(pem)
		login := scram.Auth{User: j.User, Pass: j.Password}
		options = append(options, kgo.DialTLSConfig(&tls.Config{RootCAs: trusted}), kgo.SASL(login.AsSha512Mechanism()))
	}
	client, err := kgo.NewClient(options...)
	check(err)
	return client
}

// endTransaction ends a transaction of 500 events. Every third is aborted.
func endTransaction(n int, client *kgo.Client) {
	check(client.Flush(context.Background()))
	check(client.EndTransaction(context.Background(), kgo.TransactionEndTry(n/500%3 != 2)))
}

// pause is between the events n and n + 1.
func (j job) pause(n int, client *kgo.Client) {
	if (j.Case == "slow" || j.Case == "give up") && n%10 == 0 {
		time.Sleep(5 * time.Millisecond)
	}
	if n != j.Events/2-1 {
		return
	}
	if j.Case == "close" || j.Case == "half" {
		check(client.Flush(context.Background()))
	}
	fmt.Println("half is sent")
	if j.Case == "half" {
		j.waitToGoOn()
	}
}

func (j job) waitToGoOn() {
	for {
		if _, err := os.Stat(j.GoOn); !errors.Is(err, os.ErrNotExist) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// giveUp fails the events that are not acknowledged within three seconds, also those that the log may hold.
func giveUp(client *kgo.Client) {
	limit, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	if client.Flush(limit) != nil {
		client.UnsafeAbortBufferedRecords()
	}
	fmt.Println("gave up")
}

func main() {
	var j job
	check(json.Unmarshal([]byte(os.Args[1]), &j))
	audited, err := audit.New(audit.Config{Service: "checkout"})
	check(err)
	clients := []*kgo.Client{j.client(audited)}
	if j.Case == "shared" {
		clients = append(clients, j.client(audited))
	}
	outcomes := make([]atomic.Int32, j.Events)
	var promises sync.WaitGroup
	promises.Add(j.Events)
	for n := range j.Events {
		client := clients[n%len(clients)]
		if j.Case == "transactions" && n%500 == 0 {
			check(client.BeginTransaction())
		}
		client.Produce(context.Background(), j.record(n), func(_ *kgo.Record, err error) {
			defer promises.Done()
			outcomes[n].Store(1)
			if err != nil {
				outcomes[n].Store(2)
			}
		})
		if j.Case == "transactions" && n%500 == 499 {
			endTransaction(n, client)
		}
		j.pause(n, client)
	}
	if j.Case == "give up" {
		giveUp(clients[0])
		j.waitToGoOn()
	}
	if j.Case == "wait" {
		promises.Wait()
		fmt.Println("flushed")
		select {}
	}
	for _, client := range clients {
		if j.Case != "close" {
			check(client.Flush(context.Background()))
		}
		client.Close()
	}
	promises.Wait()
	var words strings.Builder
	for n := range outcomes {
		fmt.Fprintf(&words, "%c\n", "-af"[outcomes[n].Load()])
	}
	check(os.WriteFile(j.Outcomes, []byte(words.String()), 0o644))
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	fmt.Println("reporting goroutines left:", strings.Count(string(stacks), "millrace/audit."))
}
