package doctor_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/doctor/read"
)

// What notes say is for people: with other words, the words of other notes among them, every finding is the same.
func TestWordsOfNotesDecideNothing(t *testing.T) {
	words := strings.Fields("cut middle in the end ends of file line lines refused unread unknown rank 0 Xid 79 gzip was were not read kept longer")
	rng := rand.New(rand.NewPCG(3, 7))
	all := ncclJob{version: "2.27.3"}.text()
	half := all[:strings.Index(all, "Init START")+200]
	half = half[:strings.LastIndex(half, "\n")+1]
	files := map[string]string{
		"whole":         half, // no rank is further than the first lines of init
		"without end":   half[:len(half)-20],
		"one long line": half + strings.Repeat("x", 2<<20) + "\n",
		"twice":         half + half[:len(half)-9],
	}
	for _, s := range append(symptoms(), findings()...) {
		for name, text := range s.sick {
			files[s.id+" "+name] = text[:len(text)*3/4]
		}
	}
	for name, text := range files {
		c := &doctor.Case{}
		if err := read.File(c, "job.log", "", strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
		read.Finish(c)
		want := fmt.Sprintf("%+v", doctor.Diagnose(c, doctor.Options{}).Findings)
		for range 3 {
			for i := range c.Files {
				for j := range c.Files[i].Notes {
					n := &c.Files[i].Notes[j]
					n.Text = ""
					for range rng.IntN(8) {
						n.Text += words[rng.IntN(len(words))] + " "
					}
				}
			}
			if got := fmt.Sprintf("%+v", doctor.Diagnose(c, doctor.Options{}).Findings); got != want {
				t.Fatalf("%s: with notes %v\n%s\nbefore\n%s", name, c.Files[0].Notes, got, want)
			}
		}
	}
}

// A line that is too long somewhere in a log says nothing about its end.
func TestLongLineIsNoCut(t *testing.T) {
	all := ncclJob{version: "2.27.3"}.text()
	var text strings.Builder
	for l := range strings.Lines(all) {
		if strings.Contains(l, "Init START") && strings.Contains(l, "rank 3 ") {
			continue
		}
		if strings.Contains(l, "Init COMPLETE") {
			break
		}
		text.WriteString(l)
	}
	long := diagnose(t, file(strings.Repeat("progress ", 1<<18)+"\n"+text.String()))
	plain := diagnose(t, file(text.String()))
	a, b := found(plain, "never-arrived"), found(long, "never-arrived")
	if a == nil || b == nil || a.Severity != b.Severity || a.Confidence != b.Confidence {
		t.Errorf("without a long line %+v\nwith one %+v", a, b)
	}
}
