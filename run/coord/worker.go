package coord

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/weft-fabric/weft/run/internal/member"
)

// Any asks Register for the lowest id that is free.
const Any = member.Nobody

func workerKey(id member.ID) string { return fmt.Sprintf("worker/%08x", uint32(id)) }

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// newLife is a random one, and not 0.
func newLife() Life {
	var b [8]byte
	rand.Read(b[:])
	return Life(binary.LittleEndian.Uint64(b[:]) | 1)
}

// Registration is a worker of this process, kept alive until it leaves.
type Registration struct {
	c      *Client
	cancel context.CancelFunc
	done   chan struct{}

	mu    sync.Mutex // over what follows
	w     Worker
	lease clientv3.LeaseID
	dirty bool // w is to be written
	kick  chan struct{}
	gone  chan struct{} // closed when another process has the id, or this one is reported dead
	why   error
}

// Register enters a worker under a lease. Its id is its slot, which it keeps
// over restarts, or Any; the id of a process whose lease has not yet ended is
// waited for, and ErrTaken if that one goes on. Life, State and Why are set here.
func (c *Client) Register(ctx context.Context, w Worker) (*Registration, error) {
	free := w.ID == Any
	if free {
		w.ID = 0
	}
	w.State, w.Why = Joining, ""
	r := &Registration{c: c, done: make(chan struct{}), w: w, kick: make(chan struct{}, 1), gone: make(chan struct{})}
	if err := r.enter(ctx, free); err != nil {
		return nil, err
	}
	keep, cancel := c.bind(context.Background())
	r.cancel = cancel
	c.tasks.Add(1)
	go func() {
		defer c.tasks.Done()
		defer close(r.done)
		r.keep(keep)
	}()
	return r, nil
}

// grant asks for a lease.
func (c *Client) grant(ctx context.Context, term time.Duration) (clientv3.LeaseID, error) {
	var lease *clientv3.LeaseGrantResponse
	err := c.do(ctx, func(ctx context.Context) (err error) {
		lease, err = c.etcd.Grant(ctx, int64(term/time.Second))
		return err
	})
	if err != nil {
		return 0, err
	}
	return lease.ID, nil
}

// enter writes the worker under a new lease and a new life.
func (r *Registration) enter(ctx context.Context, free bool) error {
	c := r.c
	r.mu.Lock()
	w := r.w
	r.mu.Unlock()
	w.Life, w.State, w.Why, w.Round, w.Fault = newLife(), Joining, "", 0, ""
	if err := w.check(); err != nil {
		return err
	}
	lease, err := c.grant(ctx, c.cfg.TTL)
	if err != nil {
		return err
	}
	for {
		key := c.prefix + workerKey(w.ID)
		value, err := encode("the record of a worker", w, MaxValue)
		if err != nil {
			return err
		}
		// Free is also what has been reported dead: its value is replaced if it is still the same.
		var old Worker
		var mod int64
		var got *clientv3.GetResponse
		if err := c.do(ctx, func(ctx context.Context) (err error) { got, err = c.etcd.Get(ctx, key); return err }); err != nil {
			return err
		}
		if len(got.Kvs) > 0 {
			mod = got.Kvs[0].ModRevision
			if old, err = DecodeWorker(got.Kvs[0].Value); err != nil {
				return fmt.Errorf("%w (%s)", err, key)
			}
		}
		if mod > 0 && old.State != Dead && old.Life != w.Life {
			if free {
				if w.ID++; w.ID == outside {
					return errors.New("coord: no id is free")
				}
				continue
			}
			if err := c.awaitGone(ctx, old, got.Kvs[0].Lease); err != nil {
				return err
			}
			continue
		}
		var answer *clientv3.TxnResponse
		err = c.do(ctx, func(ctx context.Context) (err error) {
			answer, err = c.etcd.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", mod)).
				Then(clientv3.OpPut(key, value, clientv3.WithLease(lease))).Commit()
			return err
		})
		if errors.Is(err, rpctypes.ErrLeaseNotFound) { // it took longer than a term to get here
			if lease, err = c.grant(ctx, c.cfg.TTL); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		if answer.Succeeded || old.Life == w.Life {
			r.mu.Lock()
			defer r.mu.Unlock()
			w.Step, w.Pace = r.w.Step, r.w.Pace
			r.w, r.lease, r.dirty = w, lease, false
			return nil
		}
	}
}

// awaitGone waits for the end of a process's registration, for a term of its lease
// and the second in which etcd finds that one has ended.
func (c *Client) awaitGone(ctx context.Context, old Worker, lease int64) error {
	term := c.cfg.TTL
	var left *clientv3.LeaseTimeToLiveResponse
	if err := c.do(ctx, func(ctx context.Context) (err error) {
		left, err = c.etcd.TimeToLive(ctx, clientv3.LeaseID(lease))
		return err
	}); err == nil && left.GrantedTTL > 0 {
		term = time.Duration(left.GrantedTTL) * time.Second
	}
	wait, cancel := context.WithTimeout(ctx, term+time.Second)
	defer cancel()
	err := c.follow(wait, workerKey(old.ID), func(news []change) bool {
		for _, n := range news {
			if n.key != "" {
				continue
			}
			w, err := DecodeWorker(n.value)
			if n.value == nil || err != nil || w.Life != old.Life || w.State == Dead {
				return false
			}
			old = w
		}
		// The first word is what is there; without any the key has gone.
		return len(news) > 0
	})
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("coord: id %d belongs to %s, state %s; stop that one or choose another id: %w", old.ID, old, old.State, ErrTaken)
	}
	return err
}

// keep renews the lease four times a term, writes what has changed, and enters
// anew if the lease ended while the coordinator could not be reached.
func (r *Registration) keep(ctx context.Context) {
	tick := time.NewTicker(r.c.cfg.TTL / 4)
	defer tick.Stop()
	leases := renewer{c: r.c}
	defer leases.close()
	for {
		renew := true
		select {
		case <-ctx.Done():
			return
		case <-r.kick:
			renew = false
		case <-tick.C:
		}
		r.mu.Lock()
		lease := r.lease
		r.mu.Unlock()
		if renew {
			err := leases.renew(ctx, lease)
			if errors.Is(err, rpctypes.ErrLeaseNotFound) {
				if err := r.enter(ctx, false); errors.Is(err, ErrTaken) {
					r.end(err)
					return
				}
				continue
			}
			if err != nil {
				continue // the members go on without the coordinator
			}
		}
		if err := r.write(ctx); err != nil {
			r.end(err)
			return
		}
	}
}

// end says that this registration is over.
func (r *Registration) end(why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.why = why
	close(r.gone)
}

// write puts the record into the store, if it has changed, in place of this
// life's own. It fails if another process has the place, or this one is dead in
// the eyes of its launcher.
func (r *Registration) write(ctx context.Context) error {
	c := r.c
	r.mu.Lock()
	w, dirty := r.w, r.dirty
	r.dirty = false
	r.mu.Unlock()
	if !dirty {
		return nil
	}
	key := c.prefix + workerKey(w.ID)
	value, err := encode("the record of a worker", w, MaxValue)
	if err != nil {
		return err
	}
	for {
		ctx, cancel := context.WithTimeout(ctx, longest)
		got, err := c.etcd.Get(ctx, key)
		var answer *clientv3.TxnResponse
		if err == nil && len(got.Kvs) > 0 {
			old, bad := DecodeWorker(got.Kvs[0].Value)
			if bad == nil && (old.Life != w.Life || old.State == Dead) {
				cancel()
				return fmt.Errorf("coord: the place of %s is now that of %s, state %s %s: %w", w, old, old.State, old.Why, ErrTaken)
			}
			answer, err = c.etcd.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", got.Kvs[0].ModRevision)).
				Then(clientv3.OpPut(key, value, clientv3.WithIgnoreLease())).Commit()
		}
		cancel()
		if err == nil && answer != nil && !answer.Succeeded {
			continue
		}
		if err != nil || answer == nil { // the store is away or the lease has ended: the next renewal finds out
			r.mu.Lock()
			r.dirty = true
			r.mu.Unlock()
		}
		return nil
	}
}

// update changes the record, and has it written now or with the next renewal.
func (r *Registration) update(now bool, f func(*Worker)) {
	r.mu.Lock()
	f(&r.w)
	r.dirty = true
	r.mu.Unlock()
	if now {
		select {
		case r.kick <- struct{}{}:
		default:
		}
	}
}

// Worker is the record as it is now.
func (r *Registration) Worker() Worker {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.w
}

// Progress says that a step is done and how long one takes. It costs a write with
// every renewal of the lease, whatever the number of steps.
func (r *Registration) Progress(step uint64, pace time.Duration) {
	r.update(false, func(w *Worker) { w.Step, w.Pace = step, int64(max(pace, 0)) })
}

// CaughtUp says that this worker, which recovers, has the state of the others.
func (r *Registration) CaughtUp() {
	r.update(true, func(w *Worker) {
		if w.State == Joining {
			w.State = Ready
		}
	})
}

// Note puts a remark into the worker's record, for those who watch workers.
func (r *Registration) Note(text string) {
	r.update(true, func(w *Worker) { w.Why = text })
}

// Begin says that this worker is about to start its process of a round, and that
// none of an earlier round is left.
func (r *Registration) Begin(round uint64) {
	r.update(true, func(w *Worker) { w.Round, w.Fault, w.Why = round, "", "" })
}

// Failed says that the process of this round failed. Under Policy.Together all
// processes of the job are started again.
func (r *Registration) Failed(why string) {
	r.update(true, func(w *Worker) { w.Fault = why })
}

// AskToLeave asks for an epoch without this worker, which goes on until then.
func (r *Registration) AskToLeave(why string) {
	r.update(true, func(w *Worker) { w.State, w.Why = Leaving, why })
}

// Gone is closed when the registration is over although nobody asked: another
// process has the id, or this one was reported dead. Err says which.
func (r *Registration) Gone() <-chan struct{} { return r.gone }

// Err says why the registration is over, nil if it is not.
func (r *Registration) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.why
}

// Leave ends the registration at once. Members that train should AskToLeave first.
func (r *Registration) Leave(ctx context.Context) error {
	r.cancel()
	<-r.done
	if r.Err() == nil { // so that others can tell it from a lease that ended
		r.update(false, func(w *Worker) { w.State = Leaving })
		r.write(ctx)
	}
	r.mu.Lock()
	lease, over := r.lease, r.why != nil
	r.mu.Unlock()
	if over {
		return nil
	}
	err := r.c.do(ctx, func(ctx context.Context) error { _, err := r.c.etcd.Revoke(ctx, lease); return err })
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return nil
	}
	return err
}

// ReportDead says that the process this worker stands for was seen to end, and
// ends the registration.
func (r *Registration) ReportDead(ctx context.Context, why string) error {
	r.cancel()
	<-r.done // it must not enter anew
	w := r.Worker()
	return r.c.ReportDead(ctx, w.ID, w.Life, why)
}

// ReportDead says that a worker's process was seen to end, by the launcher that
// started it. The decider hears of it at once; no lease has to end. Nothing
// happens if the life is no longer registered; life 0 stands for the one that is.
// A worker that lives after all enters anew, with another life, as one that recovers.
func (c *Client) ReportDead(ctx context.Context, id member.ID, life Life, why string) error {
	return c.reportDead(ctx, id, life, why)
}

// Accuse is ReportDead by a member of an epoch that sees no other way on. Nothing
// happens if there is a later epoch: one that was cut off and left out must not
// have those ended who went on.
func (c *Client) Accuse(ctx context.Context, epoch uint64, id member.ID, life Life, why string) error {
	err := c.reportDead(ctx, id, life, why, clientv3.Compare(clientv3.CreateRevision(c.prefix+epochKey(epoch+1)), "=", 0))
	if errors.Is(err, ErrSuperseded) {
		return nil
	}
	return err
}

// reportDead marks a worker as dead and takes its lease away. It does nothing if the worker is gone, is dead already,
// or has entered anew since (life is that of an earlier entry; 0 is any). If conds do not hold any more it returns
// ErrSuperseded: somebody else decides now.
func (c *Client) reportDead(ctx context.Context, id member.ID, life Life, why string, conds ...clientv3.Cmp) error {
	key := c.prefix + workerKey(id)
	for {
		var got *clientv3.GetResponse
		if err := c.do(ctx, func(ctx context.Context) (err error) { got, err = c.etcd.Get(ctx, key); return err }); err != nil {
			return err
		}
		if len(got.Kvs) == 0 {
			return nil
		}
		w, err := DecodeWorker(got.Kvs[0].Value)
		if err != nil {
			return fmt.Errorf("%w (%s)", err, key)
		}
		if life != 0 && w.Life != life || w.State == Dead {
			return nil
		}
		if len(why) > 4<<10 {
			why = why[:4<<10]
		}
		w.State, w.Why = Dead, why
		value, err := encode("the record of a worker", w, 2*MaxValue)
		if err != nil {
			return err
		}
		var answer *clientv3.TxnResponse
		err = c.do(ctx, func(ctx context.Context) (err error) {
			answer, err = c.etcd.Txn(ctx).If(append(conds, clientv3.Compare(clientv3.ModRevision(key), "=", got.Kvs[0].ModRevision))...).
				Then(clientv3.OpPut(key, value, clientv3.WithIgnoreLease())).
				Else(clientv3.OpTxn(conds, nil, []clientv3.Op{clientv3.OpGet(key)})).Commit()
			return err
		})
		if err != nil {
			return err
		}
		if !answer.Succeeded && !answer.Responses[0].GetResponseTxn().Succeeded {
			return ErrSuperseded
		}
		if answer.Succeeded {
			// One that lives after all finds its lease gone and enters anew.
			c.revoke(clientv3.LeaseID(got.Kvs[0].Lease))
			return nil
		}
	}
}

// Workers lists who is registered, ascending by id.
func (c *Client) Workers(ctx context.Context) ([]Worker, error) {
	var got *clientv3.GetResponse
	err := c.do(ctx, func(ctx context.Context) (err error) {
		got, err = c.etcd.Get(ctx, c.prefix+"worker/", clientv3.WithPrefix())
		return err
	})
	if err != nil {
		return nil, err
	}
	var list []Worker
	for _, kv := range got.Kvs {
		w, err := DecodeWorker(kv.Value)
		if err != nil {
			return nil, fmt.Errorf("%w (%s)", err, kv.Key)
		}
		list = append(list, w)
	}
	return list, nil
}

// Word says what a WorkerEvent tells.
type Word string

// What is told of a worker.
const (
	Joined  Word = "joined"
	Changed Word = "changed" // state, step or address
	Died    Word = "died"    // reported by its launcher
	Left    Word = "left"    // after it was leaving or dead, or of its own will
	Expired Word = "expired" // its lease ended: silent
)

// WorkerEvent is news of a worker.
type WorkerEvent struct {
	Word   Word
	Worker Worker // as it was last
}

// roster is who is registered, and turns changes of keys into events.
type roster map[string]Worker

// apply takes one change. A record that cannot be read counts as none.
func (r roster) apply(n change) []WorkerEvent {
	old, had := r[n.key]
	gone := func() WorkerEvent {
		word := Expired
		if old.State == Dead || old.State == Leaving {
			word = Left
		}
		return WorkerEvent{word, old}
	}
	w, err := DecodeWorker(n.value)
	if n.value == nil || err != nil || workerKey(w.ID) != "worker/"+n.key {
		delete(r, n.key)
		if had {
			return []WorkerEvent{gone()}
		}
		return nil
	}
	r[n.key] = w
	var events []WorkerEvent
	if had && old.Life != w.Life {
		events, had = append(events, gone()), false
	}
	switch {
	case had && w.State == Dead && old.State != Dead:
		return append(events, WorkerEvent{Died, w})
	case had:
		return append(events, WorkerEvent{Changed, w})
	}
	events = append(events, WorkerEvent{Joined, w})
	if w.State == Dead {
		events = append(events, WorkerEvent{Died, w})
	}
	return events
}

// WatchWorkers tells who is registered and what becomes of them, until the
// context ends; then the channel is closed.
func (c *Client) WatchWorkers(ctx context.Context) <-chan WorkerEvent {
	out := make(chan WorkerEvent)
	c.tasks.Add(1)
	go func() {
		defer c.tasks.Done()
		defer close(out)
		known := roster{}
		ctx, cancel := c.bind(ctx)
		defer cancel()
		c.follow(ctx, "worker/", func(news []change) bool {
			for _, n := range news {
				for _, e := range known.apply(n) {
					select {
					case out <- e:
					case <-ctx.Done():
						return false
					}
				}
			}
			return true
		})
	}()
	return out
}
