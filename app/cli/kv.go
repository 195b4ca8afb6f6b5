package cli

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/move/kv"
)

func newKV() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kv",
		Short: "Run a KV-cache service, and replay traces against cache policies",
		Long:  `Work with KV caches: blocks that a model computes for a prompt and that other requests can reuse.`,
		Example: `  weft kv trace --requests 2000 -o trace.jsonl
  weft kv replay trace.jsonl --tiers memory=1000`,
		RunE: group,
	}
	cmd.AddCommand(newKVServe(), newKVStat(), newKVToken(), newKVTrace(), newKVReplay(), newKVBench())
	return cmd
}

func newKVTrace() *cobra.Command {
	s := kv.Conversation()
	var seed uint64
	var out string
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "Generate a conversation trace in Mooncake's format",
		Long: `Generate requests like those of conversations: each starts with one of a few application prompts, continues for some
turns and repeats everything before. The output is JSON lines: timestamp (milliseconds), input_length, output_length,
and hash_ids, one per 512 input tokens; common prefixes share their ids.`,
		Example: `  weft kv trace --requests 2000 -o trace.jsonl
  weft kv trace --requests 500 --turns 8 --seed 7`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := kv.Generate(s, seed)
			if err != nil {
				return err
			}
			return output(cmd, out, func(w io.Writer) error { return kv.WriteTrace(w, list) })
		},
	}
	f := cmd.Flags()
	f.IntVar(&s.Requests, "requests", s.Requests, "how many `REQUESTS`")
	f.Float64Var(&s.Rate, "rate", s.Rate, "new `CONVERSATIONS` per second")
	f.IntVar(&s.Prompts, "prompts", s.Prompts, "`PROMPTS` of applications that conversations begin with")
	f.IntVar(&s.Prompt, "prompt", s.Prompt, "`TOKENS` of such a prompt, on average")
	f.IntVar(&s.User, "user", s.User, "`TOKENS` that a turn adds, on average")
	f.IntVar(&s.Answer, "answer", s.Answer, "`TOKENS` of an answer, on average")
	f.Float64Var(&s.Turns, "turns", s.Turns, "`TURNS` of a conversation, on average")
	f.Float64Var(&s.Think, "think", s.Think, "`SECONDS` between turns, on average")
	f.Uint64Var(&seed, "seed", 1, "`SEED`: the same one gives the same trace")
	f.StringVarP(&out, "output", "o", "", "`FILE` to write; default: standard output")
	return cmd
}

// kvReplay are the flags of weft kv replay.
type kvReplay struct {
	tiers, policies, admit string
	half                   float64
	asJSON                 bool
	e                      kv.Economy
}

func newKVReplay() *cobra.Command {
	s := kvReplay{e: kv.Llama70B(kv.TraceBlock)}
	cmd := &cobra.Command{
		Use:   "replay TRACE",
		Short: "Compare the hit rates of eviction policies on a trace in Mooncake's format",
		Long: `Run the requests of a trace through a cache of one or more tiers, once per policy: every request looks up its
blocks and stores them. The table has hit rates per tier, the share of compute saved, and an unlimited cache's hit
rate. TRACE is a file, or - for standard input; 'weft kv trace' makes one.

Sizes are in blocks of 512 tokens. Several sizes make several tables: --tiers 1000,5000,20000.
Policies: lru, lfu (uses count half after --half-life), arc, cost (the cost of recomputing the block).
Admissions to lower tiers: always, second (used twice), worth (read faster than computed).`,
		Example: `  weft kv replay trace.jsonl
  weft kv replay trace.jsonl --tiers 1000,5000 --policy lru,arc
  weft kv replay trace.jsonl --tiers memory=500,disk=5000::second --json`,
		Args: cobra.ExactArgs(1),
		RunE: s.run,
	}
	f := cmd.Flags()
	f.StringVar(&s.tiers, "tiers", "1000,5000,20000", "sizes of a cache in `BLOCKS`, or tiers as NAME=BLOCKS[:POLICY[:ADMISSION]],...")
	f.StringVar(&s.policies, "policy", "lru,lfu,arc,cost", "`POLICIES` to compare: lru, lfu, arc, cost")
	f.StringVar(&s.admit, "admit", string(kv.Always), "what lower tiers take: always, second or worth")
	f.Float64Var(&s.half, "half-life", 600, "half-life of a use in `SECONDS`, for lfu")
	f.Float64Var(&s.e.Params, "params", s.e.Params, "`PARAMETERS` of the model that computes blocks")
	f.IntVar(&s.e.Layers, "layers", s.e.Layers, "`LAYERS` of the model")
	f.IntVar(&s.e.Width, "width", s.e.Width, "`WIDTH` of the model")
	f.Float64Var(&s.e.Flops, "flops", s.e.Flops, "`FLOPS`: operations per second of the GPUs that compute blocks")
	f.BoolVar(&s.asJSON, "json", false, "print JSON")
	for name, words := range map[string][]string{"policy": {"lru", "lfu", "arc", "cost"}, "admit": {"always", "second", "worth"}} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	}
	return cmd
}

func (s *kvReplay) run(cmd *cobra.Command, args []string) error {
	data, err := readInput(cmd, args[0])
	if err != nil {
		return err
	}
	list, err := kv.ReadTrace(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("%s: %w; 'weft kv trace' writes one of this form", args[0], err)
	}
	if err := s.e.Check(); err != nil {
		return err
	}
	if !(s.half >= 0) || math.IsInf(s.half, 1) {
		return fmt.Errorf("--half-life %g: want 0 (uses never count less) or more seconds", s.half)
	}
	names, err := parsePolicies(s.policies)
	if err != nil {
		return fmt.Errorf("--policy: %w", err)
	}
	sets, err := tierSets(s.tiers, s.admit)
	if err != nil {
		return fmt.Errorf("--tiers: %w", err)
	}
	var rows []replayed
	for _, set := range sets {
		for _, p := range names {
			these, err := kv.ParseTiers(set, p, kv.Admission(s.admit))
			if err != nil {
				return fmt.Errorf("--tiers: %w", err)
			}
			r, err := kv.Replay(list, these, s.e, s.half)
			if err != nil {
				return finding{err}
			}
			rows = append(rows, replayed{p, these, r})
		}
	}
	if s.asJSON {
		return printJSON(cmd.OutOrStdout(), rows)
	}
	return printReplayed(cmd.OutOrStdout(), rows)
}

// replayed is what a trace finds in tiers under a policy.
type replayed struct {
	Policy kv.Policy `json:"policy"`
	Tiers  []kv.Tier `json:"tiers"`
	kv.Result
}

func parsePolicies(names string) (list []kv.Policy, err error) {
	for name := range strings.SplitSeq(names, ",") {
		p, err := kv.ParsePolicy(name)
		if err != nil {
			return nil, err
		}
		list = append(list, p)
	}
	return list, nil
}

func printReplayed(w io.Writer, rows []replayed) error {
	first := rows[0]
	fmt.Fprintf(w, "%d requests, %d blocks of %d tokens, %d of them different; a cache without end finds %.1f%%\n",
		first.Requests, first.Blocks, kv.TraceBlock, first.Unique, 100*first.Bound)
	t := newTable(w)
	fmt.Fprintln(t, "tiers\tpolicy\thits\tby tier\tcomputing saved\twhole prompts\twritten\tevicted")
	for _, r := range rows {
		var sizes, by, put, gone []string
		for i, x := range r.Tiers {
			sizes = append(sizes, fmt.Sprintf("%s %d", x.Name, x.Blocks))
			by = append(by, fmt.Sprintf("%.1f%%", 100*float64(r.ByTier[i])/float64(r.Blocks)))
			put = append(put, strconv.Itoa(r.Puts[i]))
			gone = append(gone, strconv.Itoa(r.Gone[i]))
		}
		fmt.Fprintf(t, "%s\t%s\t%.1f%%\t%s\t%.1f%%\t%d\t%s\t%s\n", strings.Join(sizes, ", "), r.Policy, 100*r.Rate, strings.Join(by, " "),
			100*r.Share, r.Whole, strings.Join(put, " "), strings.Join(gone, " "))
	}
	return t.Flush()
}

// tierSets reads --tiers: sizes alone are caches of one tier each.
func tierSets(text, admit string) ([]string, error) {
	switch kv.Admission(admit) {
	case kv.Always, kv.Second, kv.Worth:
	default:
		return nil, fmt.Errorf("admission %q; known: %s, %s, %s", admit, kv.Always, kv.Second, kv.Worth)
	}
	if strings.Contains(text, "=") {
		return []string{text}, nil
	}
	var out []string
	for _, n := range strings.Split(text, ",") {
		out = append(out, "memory="+n)
	}
	return out, nil
}
