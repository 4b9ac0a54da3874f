// Package audit audits what a franz-go client produces.
//
// [Hooks] number the events of each topic in the record header millrace.audit. They report every number as
// acknowledged or failed, as the event's promise sees it, to the topic audit of the same cluster. They never make a
// send fail. docs/audit-protocol.md specifies the bytes, and docs/go.md says what can be lost.
package audit

import (
	"context"
	"fmt"
	"hash/crc32"
	"log/slog"
	"maps"
	"math"
	"os"
	"regexp"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	auditTopic = "audit"
	helloWait  = 15 * time.Second
	closeWait  = 5 * time.Second
	dayMs      = 86_400_000
	earliestMs = 946_684_800_000 // 2000-01-01
	// maxKept limits the bytes of outcomes that no acknowledged report has.
	maxKept      = 64 << 20
	windowBytes  = 512
	outcomeBytes = 8
)

// maxOpenWindows limits the windows that the auditor lets an instance hold open. Only a test changes it.
var maxOpenWindows = 500_000

var topicName = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,249}$`)

// Config names a service and chooses its topics.
type Config struct {
	// Service is the name of the service: at most 255 bytes of UTF-8.
	Service string
	// Server is the name of the server, likewise. The default is the host's name.
	Server string
	// Lateness is the age of the oldest events that the service still sends. A window closes that long after its
	// end. The default is one minute.
	Lateness time.Duration
	// Topics returns whether a topic is audited. The default audits all topics.
	Topics func(topic string) bool
}

// Hooks audit the events of a client. Pass them to [kgo.WithHooks], after hooks that change records.
//
// Clients that share Hooks must belong to one cluster. Together they are one instance, which ends when the last of
// them is closed.
type Hooks struct {
	identity
	lateness time.Duration
	isChosen func(topic string) bool
	reporter *reporter
	start    sync.Once
	topics   sync.Map // name -> *topic; nil for a topic that is not audited

	mu       sync.Mutex // guards the following, and sequences and windows of topics
	clients  map[*kgo.Client]bool
	isClosed bool
	pending  int // numbered events without an outcome
	kept     int // bytes of outcomes that no acknowledged report has
	// openWindows counts the windows of all topics with a numbered event that no report has closed.
	openWindows int
}

// topic counts the events of this instance in one topic.
type topic struct {
	name        string
	tag         uint32
	isAnnounced atomic.Bool
	// tried is closed when events need not wait for the hello any longer.
	tried   chan struct{}
	release func()

	next    int64             // sequence
	windows map[int64]*window // that no report has closed
}

// window holds the outcomes in ten minutes of event time that no report has.
type window struct {
	open         int // events without a recorded outcome
	acknowledged outcomes
	failed       outcomes
}

type outcomes struct {
	sequences   []int64
	fingerprint uint64
}

// New returns the hooks of one instance.
func New(config Config) (*Hooks, error) {
	if config.Server == "" {
		config.Server, _ = os.Hostname() // a host without a name is refused below
	}
	if config.Lateness == 0 {
		config.Lateness = time.Minute
	}
	if config.Topics == nil {
		config.Topics = func(string) bool { return true }
	}
	if !isName(config.Service) || !isName(config.Server) {
		return nil, fmt.Errorf("audit: Service %q and Server %q must have 1 to 255 bytes of UTF-8: set both in Config",
			config.Service, config.Server)
	}
	h := &Hooks{
		identity: identity{config.Server, config.Service, newInstance()},
		lateness: config.Lateness,
		isChosen: config.Topics,
		clients:  map[*kgo.Client]bool{},
	}
	h.reporter = newReporter(h)
	return h, nil
}

func isName(name string) bool {
	return name != "" && len(name) <= 255 && utf8.ValidString(name)
}

// OnNewClient takes the client's connection for the audit records.
func (h *Hooks) OnNewClient(client *kgo.Client) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.isClosed {
		slog.Warn("millrace: events of this client are not audited. Call audit.New for each new client")
		return
	}
	h.clients[client] = true
	if h.reporter.options == nil {
		h.reporter.options = connection(client)
	}
}

// OnProduceRecordBuffered numbers an event. franz-go calls it in the goroutine of Produce and holds no lock.
func (h *Hooks) OnProduceRecordBuffered(r *kgo.Record) {
	t := h.topic(r.Topic)
	if t == nil {
		return
	}
	isAnnounced := h.waitForHello(t, r.Context)
	now := time.Now()
	if r.Timestamp.IsZero() {
		r.Timestamp = now
	}
	ms := r.Timestamp.UnixMilli()
	if isAnnounced && ms >= earliestMs && ms <= now.UnixMilli()+dayMs {
		if sequence, ok := h.number(t, ms); ok {
			setHeader(r, encodeHeader(t.tag, h.instance, sequence, ms))
			return
		}
	}
	setHeader(r, nil)
}

// OnProduceRecordUnbuffered notes the outcome of an event, which its promise sees next.
func (h *Hooks) OnProduceRecordUnbuffered(r *kgo.Record, err error) {
	t := h.topic(r.Topic)
	if t == nil {
		return
	}
	for _, header := range r.Headers {
		if header.Key == headerName {
			if sequence, ms, ok := decodeHeader(header.Value, t.tag, h.instance); ok {
				h.settle(t, ms, sequence, fingerprintOf(r.Value, sequence), err == nil)
			}
			return
		}
	}
}

// OnClientClosed sends the last report: within five seconds after the last promise, which has five seconds, too.
func (h *Hooks) OnClientClosed(client *kgo.Client) {
	if !h.isLast(client) {
		return
	}
	// franz-go still calls promises: they run in a goroutine of their own.
	for deadline := time.Now().Add(closeWait); h.hasPending() && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	h.start.Do(func() { close(h.reporter.ended) }) // nothing was audited
	h.reporter.end(closeWait)
}

func (h *Hooks) isLast(client *kgo.Client) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.clients[client] {
		return false // closed before
	}
	delete(h.clients, client)
	h.isClosed = len(h.clients) == 0
	return h.isClosed
}

func (h *Hooks) hasPending() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.pending > 0
}

// topic returns the counts of a topic, or nil if the topic is not audited.
func (h *Hooks) topic(name string) *topic {
	if known, ok := h.topics.Load(name); ok {
		return known.(*topic)
	}
	var t *topic
	if name != auditTopic && isTopicName(name) && h.isChosen(name) {
		tried := make(chan struct{})
		t = &topic{
			name:    name,
			tag:     crc32.ChecksumIEEE([]byte(name)),
			tried:   tried,
			release: sync.OnceFunc(func() { close(tried) }),
			windows: map[int64]*window{},
		}
	}
	stored, _ := h.topics.LoadOrStore(name, t)
	return stored.(*topic)
}

// isTopicName returns whether Kafka accepts a name. The auditor rejects a report with any other name.
func isTopicName(name string) bool {
	return topicName.MatchString(name) && name != "." && name != ".."
}

// waitForHello returns whether a topic is announced. Only the first events of a topic wait.
func (h *Hooks) waitForHello(t *topic, ctx context.Context) bool {
	select {
	case <-t.tried:
		return t.isAnnounced.Load()
	default:
	}
	h.start.Do(func() { go h.reporter.run() })
	h.reporter.wakeUp()
	timer := time.NewTimer(helloWait)
	defer timer.Stop()
	select {
	case <-t.tried:
	case <-timer.C:
		t.release()
	case <-ctx.Done():
	case <-h.reporter.ending:
	}
	return t.isAnnounced.Load()
}

// number returns the next sequence of a topic. It returns false if the client is closed, whose events fail, or if the
// event would open a window beyond the limit.
func (h *Hooks) number(t *topic, ms int64) (sequence int64, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.isClosed {
		return 0, false
	}
	start := windowOf(ms)
	w := t.windows[start]
	if w == nil {
		if h.openWindows >= maxOpenWindows {
			return 0, false
		}
		w = &window{}
		t.windows[start] = w
		h.openWindows++
	}
	w.open++
	h.pending++
	t.next++
	return t.next - 1, true
}

// settle notes an outcome. An outcome that does not fit is never reported, and keeps its window open for good.
func (h *Hooks) settle(t *topic, ms, sequence int64, fingerprint uint64, isAcknowledged bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pending--
	w := t.windows[windowOf(ms)]
	if w == nil || h.kept >= maxKept {
		return
	}
	before := h.kept
	if w.isEmpty() {
		h.kept += windowBytes
	}
	h.kept += outcomeBytes
	if before < maxKept/4 && h.kept >= maxKept/4 {
		h.reporter.wakeUp() // report before the time
	}
	w.open--
	if isAcknowledged {
		w.acknowledged.add(sequence, fingerprint)
	} else {
		w.failed.add(sequence, fingerprint)
	}
}

func (w *window) isEmpty() bool { return w.count() == 0 }

func (w *window) count() int { return len(w.acknowledged.sequences) + len(w.failed.sequences) }

// fingerprintOf returns the fingerprint of an event: XXH64 of its value, seeded with its sequence.
func fingerprintOf(value []byte, sequence int64) uint64 {
	var digest xxhash.Digest
	digest.ResetWithSeed(uint64(sequence))
	digest.Write(value)
	return digest.Sum64()
}

func (o *outcomes) add(sequence int64, fingerprint uint64) {
	o.sequences = append(o.sequences, sequence)
	o.fingerprint += fingerprint
}

// take returns the outcomes that no report has, and the bytes that were kept for them. Every event before `closes`
// has been taken.
func (h *Hooks) take(isLast bool) (parts []part, bytes int, closes int64) {
	closes = math.MaxInt64
	if !isLast {
		closes = windowOf(time.Now().Add(-h.lateness).UnixMilli())
	}
	taken := map[*topic]map[int64]*window{}
	h.mu.Lock()
	h.topics.Range(func(_, value any) bool {
		if t := value.(*topic); t != nil {
			taken[t] = t.take()
			for start, w := range t.windows {
				if w.open > 0 {
					closes = min(closes, start)
				}
			}
		}
		return true
	})
	h.openWindows = 0
	for t := range taken {
		maps.DeleteFunc(t.windows, func(start int64, _ *window) bool { return start < closes })
		h.openWindows += len(t.windows)
	}
	h.mu.Unlock()
	for t, windows := range taken {
		for start, w := range windows {
			bytes += windowBytes + outcomeBytes*w.count()
			parts = append(parts, w.parts(t.name, start)...)
		}
	}
	return parts, bytes, closes
}

// take returns the windows with outcomes, and leaves the windows without these outcomes.
func (t *topic) take() map[int64]*window {
	taken := map[int64]*window{}
	for start, w := range t.windows {
		if !w.isEmpty() {
			taken[start] = w
			t.windows[start] = &window{open: w.open}
		}
	}
	return taken
}

// reported forgets outcomes whose reports are acknowledged.
func (h *Hooks) reported(bytes int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.kept -= bytes
}

// checkRoom returns an error if events of further windows get no number.
func (h *Hooks) checkRoom() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.openWindows < maxOpenWindows {
		return nil
	}
	return fmt.Errorf("%d windows of this instance are open: send events in the order of their times, or use a new "+
		"client with new hooks for the next ones", h.openWindows)
}

// isFilling returns whether outcomes must be reported before the time.
func (h *Hooks) isFilling() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.kept >= maxKept/4
}
