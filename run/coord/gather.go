package coord

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// GatherWait is how long Gather and Barrier wait if their context has no deadline.
const GatherWait = time.Minute

// MissingError says who did not come to a Gather or Barrier in time.
type MissingError struct {
	Name    string
	Epoch   uint64
	Missing []Seat // ascending by rank
	Ranks   []int  // of Missing
	Of      int
	Waited  time.Duration
}

// Error names up to eight of those who did not come.
func (e *MissingError) Error() string {
	var who []string
	for i, s := range e.Missing {
		if i == 8 {
			who = append(who, fmt.Sprintf("and %d more", len(e.Missing)-i))
			break
		}
		who = append(who, fmt.Sprintf("rank %d (worker %d on %s)", e.Ranks[i], s.ID, s.Host))
	}
	if len(who) == 0 {
		who = []string{"rank 0, which had to say that all are there"}
	}
	return fmt.Sprintf("coord: %q in epoch %d after %.1f s: %d of %d came, missing: %s",
		e.Name, e.Epoch, e.Waited.Seconds(), e.Of-len(e.Missing), e.Of, strings.Join(who, ", "))
}

// Timeout makes it a deadline in the sense of net.Error.
func (e *MissingError) Timeout() bool { return true }

// Unwrap makes it context.DeadlineExceeded.
func (e *MissingError) Unwrap() error { return context.DeadlineExceeded }

// firstEpoch is the first of what changed that is an epoch.
func firstEpoch(news []change) (Epoch, bool) {
	for _, n := range news {
		if e, err := DecodeEpoch(n.value); err == nil {
			return e, true
		}
	}
	return Epoch{}, false
}

// Gather brings the values of all members of an epoch together, in rank order.
// Each calls it with its rank and the same name, which serves once in an epoch.
// Rank 0 collects and the others wait for its word, so that n members cost 2n
// messages rather than n². It ends early with ErrSuperseded when a later epoch is
// published, and with a MissingError at the context's deadline.
func (c *Client) Gather(ctx context.Context, e Epoch, rank int, name string, value []byte) ([][]byte, error) {
	if err := checkName("name", name); err != nil {
		return nil, err
	}
	if rank < 0 || rank >= len(e.Members) {
		return nil, fmt.Errorf("coord: rank %d in epoch %d of %d members", rank, e.Number, len(e.Members))
	}
	if err := checkSize(fmt.Sprintf("the value of rank %d for %q", rank, name), len(value), MaxValue); err != nil {
		return nil, err
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, GatherWait)
		defer cancel()
	}
	began := time.Now()
	work, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	later := make(chan struct{})
	go func() {
		defer close(later)
		c.follow(work, epochKey(e.Number+1), func(news []change) bool {
			next, found := firstEpoch(news)
			if found {
				cancel(fmt.Errorf("coord: %q in epoch %d: epoch %d is there (%s): %w", name, e.Number, next.Number, next.Reason, ErrSuperseded))
			}
			return !found
		})
	}()
	all, err := c.gather(work, e, rank, name, value)
	cause := context.Cause(work)
	cancel(nil)
	<-later
	switch {
	case err == nil:
		return all, nil
	case errors.Is(cause, ErrSuperseded):
		return nil, cause
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return nil, c.missing(e, name, time.Since(began), err)
	}
	return nil, err
}

// Barrier waits until all members of an epoch have come to it.
func (c *Client) Barrier(ctx context.Context, e Epoch, rank int, name string) error {
	_, err := c.Gather(ctx, e, rank, name, nil)
	return err
}

func gatherKey(e Epoch, name string) string { return fmt.Sprintf("gather/%016x/%s/", e.Number, name) }

// gathered waits for the list that rank 0 makes of what n members give.
func (c *Client) gathered(ctx context.Context, key string, n int) (all [][]byte, err error) {
	var bad error
	err = c.follow(ctx, key, func(news []change) bool {
		for _, x := range news {
			if x.value != nil {
				all, bad = decodeList(x.value, n)
				return false
			}
		}
		return true
	})
	return all, errors.Join(err, bad)
}

// collect waits for what each of n members gives under its rank.
func (c *Client) collect(ctx context.Context, prefix string, n int) ([][]byte, error) {
	all, came := make([][]byte, n), make([]bool, n)
	left := n
	err := c.follow(ctx, prefix, func(news []change) bool {
		for _, x := range news {
			var r int
			if _, err := fmt.Sscanf(x.key, "%08x", &r); err != nil || x.value == nil || r < 0 || r >= n || came[r] {
				continue
			}
			all[r], came[r] = x.value, true
			left--
		}
		return left > 0
	})
	return all, err
}

// gather gives this rank's value and returns those of all. Rank 0 collects and publishes them in one record, so that
// the store is read once per rank rather than once per pair. A name serves once per epoch; giving another value under
// it is an error.
func (c *Client) gather(ctx context.Context, e Epoch, rank int, name string, value []byte) ([][]byte, error) {
	prefix := gatherKey(e, name)
	if err := c.once(ctx, fmt.Sprintf("%sin/%08x", prefix, rank), value,
		fmt.Sprintf("rank %d has given another value for %q in epoch %d; a name serves once in an epoch", rank, name, e.Number)); err != nil {
		return nil, err
	}
	if rank != 0 {
		return c.gathered(ctx, prefix+"all", len(e.Members))
	}
	all, err := c.collect(ctx, prefix+"in/", len(e.Members))
	if err != nil {
		return nil, err
	}
	list := encodeList(all)
	if err := checkSize(fmt.Sprintf("what %d members gave for %q", len(all), name), len(list), MaxGather); err != nil {
		// The others are told by a list of no values, rather than by a deadline.
		return nil, errors.Join(err, c.once(ctx, prefix+"all", encodeList(nil), "rank 0 has gathered before"))
	}
	return all, c.once(ctx, prefix+"all", list, fmt.Sprintf("%q has been gathered in epoch %d before", name, e.Number))
}

// once writes a value that is written once; the same one again does no harm.
func (c *Client) once(ctx context.Context, key string, value []byte, other string) error {
	key = c.prefix + key
	var answer *clientv3.TxnResponse
	err := c.do(ctx, func(ctx context.Context) (err error) {
		answer, err = c.etcd.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
			Then(clientv3.OpPut(key, string(value))).Else(clientv3.OpGet(key)).Commit()
		return err
	})
	if err != nil || answer.Succeeded {
		return err
	}
	if kvs := answer.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 && !bytes.Equal(kvs[0].Value, value) {
		return fmt.Errorf("coord: %s: %w", other, ErrConflict)
	}
	return nil
}

// missing finds out who did not come, within a second.
func (c *Client) missing(e Epoch, name string, waited time.Duration, err error) error {
	ctx, cancel := context.WithTimeout(c.ctx, time.Second)
	defer cancel()
	prefix := c.prefix + gatherKey(e, name) + "in/"
	var got *clientv3.GetResponse
	if c.do(ctx, func(ctx context.Context) (err error) {
		got, err = c.etcd.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
		return err
	}) != nil {
		return fmt.Errorf("coord: %q in epoch %d: %w", name, e.Number, err)
	}
	came := map[string]bool{}
	for _, kv := range got.Kvs {
		came[strings.TrimPrefix(string(kv.Key), prefix)] = true
	}
	m := &MissingError{Name: name, Epoch: e.Number, Of: len(e.Members), Waited: waited}
	for r, s := range e.Members {
		if !came[fmt.Sprintf("%08x", r)] {
			m.Missing, m.Ranks = append(m.Missing, s), append(m.Ranks, r)
		}
	}
	return m
}

// encodeList writes values one after another, each after its length.
func encodeList(all [][]byte) []byte {
	b := binary.AppendUvarint(nil, uint64(len(all)))
	for _, v := range all {
		b = append(binary.AppendUvarint(b, uint64(len(v))), v...)
	}
	return b
}

// decodeList reads a list of n values.
func decodeList(b []byte, n int) ([][]byte, error) {
	count, k := binary.Uvarint(b)
	if k <= 0 || count > uint64(len(b)) {
		return nil, errors.New("coord: a gathered list is damaged at its head")
	}
	b = b[k:]
	if count == 0 && n > 0 {
		return nil, fmt.Errorf("coord: the values of all members are more than %d bytes; send them through comm: %w", MaxGather, ErrTooLarge)
	}
	if count != uint64(n) {
		return nil, fmt.Errorf("coord: a gathered list has %d values, %d members gave one", count, n)
	}
	all := make([][]byte, 0, n)
	for i := range n {
		size, k := binary.Uvarint(b)
		if k <= 0 || size > uint64(len(b)-k) {
			return nil, fmt.Errorf("coord: a gathered list is damaged at value %d", i)
		}
		all = append(all, b[k:k+int(size):k+int(size)])
		b = b[k+int(size):]
	}
	if len(b) > 0 {
		return nil, fmt.Errorf("coord: a gathered list has %d bytes too many", len(b))
	}
	return all, nil
}
