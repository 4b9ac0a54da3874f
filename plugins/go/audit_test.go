package audit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"regexp"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// vector is one test vector of docs/audit-protocol.md: the fields of all kinds.
type vector struct {
	Vector, Topic, Value, Schema, Key, Seal string
	Kind                                    int
	Instance, Sequence, Time, Window        int64
	Fingerprint                             int64
	Values                                  []string
	Sequences                               []int64
	Ranges                                  [][2]int64
	Flat                                    []int64
	Record                                  struct {
		Time, Instance, Number, ClosedThrough      int64
		Cluster, Server, Service, Topic, Key, Seal string
		Windows                                    []struct {
			Topic                          string
			Window                         int64
			Acknowledged, Failed           []int64
			Fingerprint, FailedFingerprint int64
		}
		Fingerprinted bool
	}
}

func vectors(t *testing.T, kind string) (found []vector) {
	page, err := os.ReadFile("../../docs/audit-protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	var all []vector
	for _, block := range regexp.MustCompile("(?s)```json\n(.*?)```").FindAllSubmatch(page, -1) {
		if err := json.Unmarshal(block[1], &all); err != nil {
			t.Fatal(err)
		}
		for _, one := range all {
			if one.Vector == kind {
				found = append(found, one)
			}
		}
	}
	if len(found) == 0 {
		t.Fatalf("the page has no vector of the kind %s", kind)
	}
	return found
}

func fromHex(t *testing.T, text string) []byte {
	b, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// spansOf reads the flat list of a report.
func spansOf(flat []int64) (all []span) {
	last := int64(0)
	for n := 0; n < len(flat); n += 2 {
		first := last + flat[n]
		last = first + flat[n+1]
		all = append(all, span{first, last})
	}
	return all
}

func TestRecordHeadersHaveTheBytesOfThePage(t *testing.T) {
	for _, v := range vectors(t, "recordHeader") {
		tag := crc32.ChecksumIEEE([]byte(v.Topic))
		header := encodeHeader(tag, v.Instance, v.Sequence, v.Time)
		if got := hex.EncodeToString(header); got != v.Value {
			t.Errorf("%s: %s, want %s", v.Topic, got, v.Value)
		}
		if sequence, ms, ok := decodeHeader(header, tag, v.Instance); sequence != v.Sequence || ms != v.Time || !ok {
			t.Errorf("%s: decoded %d %d %v", v.Topic, sequence, ms, ok)
		}
		if _, _, ok := decodeHeader(header, tag, v.Instance+1); ok {
			t.Errorf("%s: decoded the header of another instance", v.Topic)
		}
		if _, _, ok := decodeHeader(header, tag+1, v.Instance); ok {
			t.Errorf("%s: decoded the header of another topic", v.Topic)
		}
	}
}

func TestFingerprintsAreThoseOfThePage(t *testing.T) {
	for _, v := range vectors(t, "fingerprint") {
		var all outcomes
		for n, value := range v.Values {
			var sequence int64 // without sequences a message has no record header, and the seed is 0
			if v.Sequences != nil {
				sequence = v.Sequences[n]
			}
			all.add(sequence, fingerprintOf(fromHex(t, value), sequence))
		}
		if int64(all.fingerprint) != v.Fingerprint {
			t.Errorf("%v: %d, want %d", v.Values, int64(all.fingerprint), v.Fingerprint)
		}
	}
}

func TestWindowsAreThoseOfThePage(t *testing.T) {
	for _, v := range vectors(t, "window") {
		if got := windowOf(v.Time); got != v.Window {
			t.Errorf("%d: %d, want %d", v.Time, got, v.Window)
		}
	}
}

func TestRangesAreThoseOfThePage(t *testing.T) {
	for _, v := range vectors(t, "ranges") {
		var all []span
		for _, pair := range v.Ranges {
			all = append(all, span{pair[0], pair[1]})
		}
		if !reflect.DeepEqual(spansOf(v.Flat), all) {
			t.Errorf("%v: %v", v.Flat, spansOf(v.Flat))
		}
	}
}

func TestSealsAreThoseOfThePage(t *testing.T) {
	for _, v := range vectors(t, "seal") {
		if seal := sha256.Sum256(fromHex(t, v.Key)); hex.EncodeToString(seal[:]) != v.Seal {
			t.Errorf("%s: %x", v.Key, seal)
		}
	}
}

func TestHellosAndReportsHaveTheBytesOfThePage(t *testing.T) {
	tested := map[int]bool{}
	for _, v := range vectors(t, "record") {
		r := v.Record
		if r.Cluster != "" || v.Kind == kindReport && !r.Fingerprinted {
			continue // a form that this package does not write
		}
		tested[v.Kind] = true
		id := identity{r.Server, r.Service, r.Instance}
		seal := [32]byte(fromHex(t, r.Seal))
		value := id.hello(r.Time, r.Topic, r.ClosedThrough, seal)
		if v.Kind == kindReport {
			var parts []part
			for _, w := range r.Windows {
				parts = append(parts, part{w.Topic, w.Window, spansOf(w.Acknowledged), spansOf(w.Failed),
					uint64(w.Fingerprint), uint64(w.FailedFingerprint)})
			}
			value = id.report(r.Time, r.Number, [16]byte(fromHex(t, r.Key)), seal, r.ClosedThrough, parts)
		}
		if got := hex.EncodeToString(value); got != v.Value {
			t.Errorf("kind %d: %s, want %s", v.Kind, got, v.Value)
		}
	}
	if !tested[kindHello] || !tested[kindReport] {
		t.Errorf("the page has no vector for each kind: %v", tested)
	}
}

func TestRangesHoldExactlyTheSequences(t *testing.T) {
	for range 200 {
		var want, got []int64
		for n := range int64(100) {
			if rand.IntN(4) > 0 {
				want = append(want, n)
			}
		}
		shuffled := append([]int64{}, want...)
		rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		last := int64(-2)
		for _, s := range spans(shuffled) {
			if s.first <= last+1 {
				t.Fatalf("the range from %d touches the range that ends at %d", s.first, last)
			}
			for last = s.first; last <= s.last; last++ {
				got = append(got, last)
			}
			last = s.last
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%v, want %v", got, want)
		}
	}
}

// hooksFor returns hooks whose topics are announced, and which send nothing.
func hooksFor(t testing.TB, topics ...string) *Hooks {
	h, err := New(Config{Service: "checkout", Server: "web-1"})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range topics {
		known := h.topic(name)
		known.isAnnounced.Store(true)
		known.release()
	}
	return h
}

func record(topic string, headers ...kgo.RecordHeader) *kgo.Record {
	return &kgo.Record{Topic: topic, Value: []byte("{}"), Headers: headers, Context: context.Background()}
}

func TestAForwardedHeaderIsReplacedAndASharedSliceStaysAsItIs(t *testing.T) {
	h := hooksFor(t, "orders")
	forwarded := []kgo.RecordHeader{{Key: "a"}, {Key: headerName, Value: []byte("old")}, {Key: "b"}}
	one, other := record("orders", forwarded...), record("orders")
	one.Headers, other.Headers = forwarded[:2:3], forwarded[:2:3]
	h.OnProduceRecordBuffered(one)
	h.OnProduceRecordBuffered(other)
	for n, r := range []*kgo.Record{one, other} {
		if len(r.Headers) != 2 || r.Headers[0].Key != headerName || r.Headers[1].Key != "a" {
			t.Errorf("record %d has the headers %v", n, r.Headers)
		}
		sequence, _, ok := decodeHeader(r.Headers[0].Value, h.topic("orders").tag, h.instance)
		if !ok || sequence != int64(n) {
			t.Errorf("record %d has the sequence %d", n, sequence)
		}
	}
	if string(forwarded[1].Value) != "old" || forwarded[2].Key != "b" {
		t.Errorf("the application's headers changed: %v", forwarded)
	}
}

func TestEventsOfImpossibleTimesLoseAForwardedHeaderAndHaveNoNumber(t *testing.T) {
	h := hooksFor(t, "orders")
	for _, at := range []time.Time{time.UnixMilli(earliestMs - 1), time.Now().Add(25 * time.Hour)} {
		r := record("orders", kgo.RecordHeader{Key: headerName, Value: []byte("old")})
		r.Timestamp = at
		h.OnProduceRecordBuffered(r)
		if len(r.Headers) != 0 || h.topic("orders").next != 0 {
			t.Errorf("%v: headers %v, next sequence %d", at, r.Headers, h.topic("orders").next)
		}
	}
}

func TestOtherTopicsStayAsTheyAre(t *testing.T) {
	h := hooksFor(t)
	h.isChosen = func(name string) bool { return name != "compacted" }
	for _, name := range []string{auditTopic, "compacted", "", ".", "..", "no/name", "ü"} {
		r := record(name, kgo.RecordHeader{Key: headerName, Value: []byte("old")})
		h.OnProduceRecordBuffered(r)
		h.OnProduceRecordUnbuffered(r, nil)
		if len(r.Headers) != 1 {
			t.Errorf("%q: the headers changed: %v", name, r.Headers)
		}
	}
}

func TestAWindowIsOpenUntilItsEventsHaveAnOutcome(t *testing.T) {
	h := hooksFor(t, "orders")
	first, second := record("orders"), record("orders")
	at := time.UnixMilli(1_760_000_000_000)
	first.Timestamp, second.Timestamp = at, at
	h.OnProduceRecordBuffered(first)
	h.OnProduceRecordBuffered(second)
	h.OnProduceRecordUnbuffered(second, errors.New("too large"))
	parts, _, closes := h.take(true)
	if closes != windowOf(at.UnixMilli()) || len(parts) != 1 || !reflect.DeepEqual(parts[0].failed, []span{{1, 1}}) {
		t.Errorf("%v, closes %d", parts, closes)
	}
	h.OnProduceRecordUnbuffered(first, nil)
	parts, _, closes = h.take(true)
	if closes != math.MaxInt64 || len(parts) != 1 || !reflect.DeepEqual(parts[0].acknowledged, []span{{0, 0}}) {
		t.Errorf("%v, closes %d", parts, closes)
	}
}

func TestReportsAreWithinTheLimitsAndCloseNoWindowOfALaterReport(t *testing.T) {
	h := hooksFor(t)
	var parts []part
	for n := range 2500 {
		parts = append(parts, part{topic: "orders", window: int64(2500-n) * windowMs, failed: []span{{int64(n), int64(n)}}})
	}
	h.reporter.write(parts, math.MaxInt64)
	if len(h.reporter.unsent) != 3 || h.reporter.reports != 3 || h.reporter.closedThrough != math.MaxInt64 {
		t.Errorf("%d reports, closed through %d", len(h.reporter.unsent), h.reporter.closedThrough)
	}
	sequences := make([]int64, maxRanges+10)
	for n := range sequences {
		sequences[n] = int64(2 * n)
	}
	w := &window{acknowledged: outcomes{sequences, 7}, failed: outcomes{[]int64{1}, 5}}
	split := w.parts("orders", 0)
	if len(split) != 2 || split[0].ranges() != maxRanges || split[1].ranges() != 11 || len(split[1].failed) != 1 ||
		split[0].fingerprint != 7 || split[0].failedFingerprint != 5 || split[1].fingerprint != 0 {
		t.Errorf("parts of %d and %d ranges", split[0].ranges(), split[1].ranges())
	}
}

func TestOutcomesThatDoNotFitKeepTheirWindowOpen(t *testing.T) {
	h := hooksFor(t, "orders")
	r := record("orders")
	h.OnProduceRecordBuffered(r)
	h.kept = maxKept
	h.OnProduceRecordUnbuffered(r, nil)
	parts, _, closes := h.take(true)
	if len(parts) != 0 || closes != windowOf(r.Timestamp.UnixMilli()) || h.pending != 0 {
		t.Errorf("%v, closes %d, %d pending", parts, closes, h.pending)
	}
}

func TestAnEventThatWouldOpenMoreWindowsThanTheAuditTakesHasNoNumber(t *testing.T) {
	defer func(limit int) { maxOpenWindows = limit }(maxOpenWindows)
	maxOpenWindows = 5
	h := hooksFor(t, "orders", "other")
	// send sends events of three windows, and returns how many of them have a number.
	send := func(topic string, first int64) (numbered int) {
		for n := range int64(3) {
			r := record(topic)
			r.Timestamp = time.UnixMilli(first + n*windowMs)
			h.OnProduceRecordBuffered(r)
			h.OnProduceRecordUnbuffered(r, nil)
			numbered += len(r.Headers)
		}
		return numbered
	}
	held := func() int {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.openWindows
	}
	waiting := record("orders")
	waiting.Timestamp = time.UnixMilli(earliestMs)
	h.OnProduceRecordBuffered(waiting)
	later := earliestMs + int64(windowMs)
	for range 2 { // the windows stay open after a report, and take further events
		if orders, other := send("orders", later), send("other", later); orders != 3 || other != 1 || held() != 5 {
			t.Errorf("%d and %d events have a number, %d windows are open", orders, other, held())
		}
		h.take(false)
	}
	h.OnProduceRecordUnbuffered(waiting, nil)
	h.take(false)
	if other := send("other", later); other != 3 || held() != 3 {
		t.Errorf("%d events have a number after a report that closes windows, %d windows are open", other, held())
	}
}

func TestNamesThatTheAuditorRejectsAreRefused(t *testing.T) {
	for _, name := range []string{"", "\xff", string(make([]byte, 256))} {
		if _, err := New(Config{Service: name}); err == nil {
			t.Errorf("%q was taken", name)
		}
	}
}

// BenchmarkEvent measures both hooks for an event of 300 bytes, and its share of a report for every 100,000 events.
func BenchmarkEvent(b *testing.B) {
	h := hooksFor(b, "orders")
	value := make([]byte, 300)
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		r := &kgo.Record{Topic: "orders", Value: value}
		h.OnProduceRecordBuffered(r)
		h.OnProduceRecordUnbuffered(r, nil)
		if n%100_000 == 0 {
			parts, bytes, closes := h.take(false)
			h.reporter.write(parts, closes)
			h.reporter.unsent = nil
			h.reported(bytes)
		}
	}
}
