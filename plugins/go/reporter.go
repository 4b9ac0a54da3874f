package audit

import (
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"math"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
)

const (
	reportEvery = 10 * time.Second
	sendWait    = 10 * time.Second
	retryWait   = 100 * time.Millisecond
	warnEvery   = time.Minute
)

// reporter sends hellos and reports in a goroutine of its own.
type reporter struct {
	hooks  *Hooks
	wake   chan struct{}
	ending chan struct{}
	ended  chan struct{}
	ctx    context.Context
	cancel context.CancelFunc
	// options of the connection are written before the goroutine starts. It alone uses the following fields.
	options       []kgo.Opt
	client        *kgo.Client
	warned        time.Time
	hasAnnounced  bool
	reports       int64    // written so far
	key           [16]byte // of the next report
	closedThrough int64
	unsent        [][]byte // written reports that are not acknowledged
	unsentBytes   int      // kept for their outcomes
}

func newReporter(hooks *Hooks) *reporter {
	ctx, cancel := context.WithCancel(context.Background())
	return &reporter{
		hooks:         hooks,
		wake:          make(chan struct{}, 1),
		ending:        make(chan struct{}),
		ended:         make(chan struct{}),
		ctx:           ctx,
		cancel:        cancel,
		key:           newKey(),
		closedThrough: math.MinInt64,
	}
}

// connection returns the options of the client for audit records. It is a client of its own, so the records are never
// part of a transaction. A retry may write a record twice, which the protocol allows.
func connection(client *kgo.Client) []kgo.Opt {
	seeds, _ := client.OptValue(kgo.SeedBrokers).([]string)
	dial, _ := client.OptValue(kgo.Dialer).(func(context.Context, string, string) (net.Conn, error))
	mechanisms, _ := client.OptValue(kgo.SASL).([]sasl.Mechanism)
	options := []kgo.Opt{
		kgo.SeedBrokers(seeds...),
		kgo.Dialer(dial), // with TLS, if the application's client has it
		kgo.ClientID("millrace-audit"),
		kgo.DisableClientMetrics(),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), // partition 0
		kgo.DisableIdempotentWrite(),
		kgo.UnknownTopicRetries(0),
		kgo.ProducerBatchMaxBytes(8 << 20),
		kgo.ProduceRequestTimeout(sendWait / 2),
		kgo.RecordDeliveryTimeout(sendWait),
	}
	for _, mechanism := range mechanisms {
		options = append(options, kgo.SASL(unclosed{mechanism}))
	}
	return options
}

// unclosed hides the method Close of a mechanism, which is the application's.
type unclosed struct{ sasl.Mechanism }

func (r *reporter) wakeUp() {
	select {
	case r.wake <- struct{}{}:
	default: // it is awake
	}
}

// end lets the goroutine send the last report, and waits until it has ended.
func (r *reporter) end(wait time.Duration) {
	defer time.AfterFunc(wait, r.cancel).Stop()
	close(r.ending)
	<-r.ended
	r.cancel()
}

func (r *reporter) run() {
	defer close(r.ended)
	defer r.disconnect()
	ticker := time.NewTicker(reportEvery)
	defer ticker.Stop()
	for {
		select {
		case <-r.ending:
			r.finish()
			return
		case <-r.wake:
			r.announce()
			if r.hooks.isFilling() {
				r.reportNews()
			}
		case <-ticker.C:
			r.announce()
			r.reportNews()
		}
	}
}

// announce sends a hello for each new topic. After a failure it lets the events of all of them go without.
func (r *reporter) announce() {
	var err error
	r.hooks.topics.Range(func(_, value any) bool {
		t := value.(*topic)
		if t == nil || t.isAnnounced.Load() {
			return true
		}
		if err == nil {
			err = r.hello(t)
		}
		t.release()
		return true
	})
	r.warn("events are sent without an audit header until a record in the topic audit is acknowledged", err)
}

func (r *reporter) hello(t *topic) error {
	if err := r.sendUnsent(); err != nil {
		return err
	}
	seal := sha256.Sum256(r.key[:])
	if err := r.send(r.hooks.hello(time.Now().UnixMilli(), t.name, r.closedThrough, seal)); err != nil {
		return err
	}
	r.hasAnnounced = true
	t.isAnnounced.Store(true)
	return nil
}

func (r *reporter) reportNews() {
	r.warn("reports are not acknowledged, they are sent again", r.report(false))
	r.warn("events of further windows are sent without an audit header", r.hooks.checkRoom())
}

// report sends the outcomes that no report has. The last report closes all time, unless an event has no outcome.
func (r *reporter) report(isLast bool) error {
	if err := r.sendUnsent(); err != nil || !r.hasAnnounced {
		return err
	}
	parts, bytes, closes := r.hooks.take(isLast)
	if len(parts) > 0 || closes != r.closedThrough {
		r.unsentBytes = bytes
		r.write(parts, closes)
	}
	return r.sendUnsent()
}

// write writes parts into reports. A report closes no window that a later report contains.
func (r *reporter) write(parts []part, closes int64) {
	for {
		size, ranges := 0, 0
		for size < min(len(parts), maxWindows) && ranges+parts[size].ranges() <= maxRanges {
			ranges += parts[size].ranges()
			size++
		}
		closesHere := closes
		for _, later := range parts[size:] {
			closesHere = min(closesHere, later.window)
		}
		next := newKey()
		r.unsent = append(r.unsent, r.hooks.report(
			time.Now().UnixMilli(), r.reports, r.key, sha256.Sum256(next[:]), closesHere, parts[:size]))
		r.reports++
		r.key = next
		parts = parts[size:]
		if len(parts) == 0 {
			break
		}
	}
	r.closedThrough = closes
}

// finish sends the last report until it is acknowledged or the time is over.
func (r *reporter) finish() {
	err := r.report(true)
	for err != nil && r.ctx.Err() == nil {
		select {
		case <-r.ctx.Done():
		case <-time.After(retryWait):
			err = r.report(true)
		}
	}
	if err == nil && r.hasAnnounced && r.closedThrough != math.MaxInt64 {
		err = errors.New("the outcome of some events was not reported")
	}
	if err != nil {
		slog.Warn("millrace: the last report is missing. Accept the instance",
			"instance", r.hooks.instance, "error", err)
	}
}

// sendUnsent sends the written reports in order, as the same bytes until they are acknowledged.
func (r *reporter) sendUnsent() error {
	for len(r.unsent) > 0 {
		if err := r.send(r.unsent[0]); err != nil {
			return err
		}
		r.unsent = r.unsent[1:]
	}
	r.hooks.reported(r.unsentBytes)
	r.unsentBytes = 0
	return nil
}

// send sends one record and waits for its acknowledgement. After an error the next record has a new connection.
func (r *reporter) send(value []byte) (err error) {
	if r.client == nil {
		if r.client, err = kgo.NewClient(r.options...); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(r.ctx, sendWait)
	defer cancel()
	outcome := make(chan error, 1)
	r.client.Produce(ctx, &kgo.Record{Topic: auditTopic, Value: value}, func(_ *kgo.Record, err error) {
		outcome <- err
	})
	select {
	case err = <-outcome:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		r.disconnect()
	}
	return err
}

func (r *reporter) disconnect() {
	if r.client != nil {
		r.client.Close()
		r.client = nil
	}
}

// warn logs a problem, at most once a minute.
func (r *reporter) warn(what string, err error) {
	if err != nil && time.Since(r.warned) >= warnEvery {
		r.warned = time.Now()
		slog.Warn("millrace: "+what, "error", err)
	}
}
