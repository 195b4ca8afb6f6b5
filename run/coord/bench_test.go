package coord

import (
	"context"
	"fmt"
	"testing"

	"github.com/weft-fabric/weft/run/internal/member"
)

// The time from a launcher's report to the moment at which each of the others has
// the new epoch, with 8 workers that have connections of their own.
func BenchmarkReportDeadToEpoch(b *testing.B) {
	b.Run("memory", func(b *testing.B) { reportDeadToEpoch(b, ServerConfig{Dir: stateDir(b)}) })
	b.Run("disk", func(b *testing.B) { reportDeadToEpoch(b, ServerConfig{Dir: b.TempDir() + "/c"}) })
	b.Run("disk,nosync", func(b *testing.B) { reportDeadToEpoch(b, ServerConfig{Dir: b.TempDir() + "/c", NoSync: true}) })
}

func reportDeadToEpoch(b *testing.B, s ServerConfig) {
	const n = 8
	s.Listen, s.Token = freePort(b), testToken
	p := start(b, child{Server: s, Policy: &Policy{Min: 1, Max: n, Settle: 20e6, Name: "server"}, Job: "job"})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	clients, watches, regs := make([]*Client, n), make([]<-chan Epoch, n), make([]*Registration, n)
	for i := range clients {
		clients[i] = dial(b, p.addr)
		watches[i] = clients[i].WatchEpochs(ctx)
		regs[i] = register(b, clients[i], member.ID(i))
		regs[i].CaughtUp()
	}
	full := func(e Epoch) bool { return len(e.Members) == n }
	for i := range watches {
		await(b, watches[i], "all", full)
	}
	b.ResetTimer()
	b.StopTimer()
	for range b.N {
		regs[n-1].cancel()
		<-regs[n-1].done
		life := regs[n-1].Worker().Life
		b.StartTimer()
		if err := clients[0].ReportDead(ctx, n-1, life, "killed"); err != nil {
			b.Fatal(err)
		}
		for i := range watches {
			await(b, watches[i], "the survivors", func(e Epoch) bool { return len(e.Members) == n-1 })
		}
		b.StopTimer()
		regs[n-1] = register(b, clients[n-1], n-1)
		regs[n-1].CaughtUp()
		for i := range watches {
			await(b, watches[i], "all", full)
		}
	}
}

// The time from starting a server's process to its first answer.
func BenchmarkServe(b *testing.B) {
	for _, sync := range []bool{false, true} {
		b.Run(fmt.Sprintf("sync=%v", sync), func(b *testing.B) {
			for range b.N {
				p := start(b, child{Server: ServerConfig{Dir: b.TempDir() + "/c", Listen: "127.0.0.1:0", Token: testToken, NoSync: !sync}})
				p.kill()
			}
		})
	}
}
