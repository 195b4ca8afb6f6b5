package serve

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// block is the tokens of one of Mooncake's blocks, which hash_ids names.
const block = 512

// maxTokens is the longest prompt and answer that a trace may have.
const maxTokens = 1 << 28

// ReadTrace reads arrivals: Mooncake's lines of JSON (timestamp in milliseconds, input_length, output_length, and hash_ids,
// from which follows what earlier prompts left in the cache), Azure's tables (TIMESTAMP, ContextTokens, GeneratedTokens) or
// BurstGPT's (Timestamp, Request tokens, Response tokens). Times begin at 0.
func ReadTrace(data []byte) ([]Request, error) {
	data = bytes.TrimPrefix(bytes.TrimSpace(data), []byte("\xef\xbb\xbf"))
	var out []Request
	var err error
	if bytes.HasPrefix(data, []byte("[")) { // the same objects as one list
		var list []json.RawMessage
		if err := json.Unmarshal(data, &list); err != nil {
			return nil, fmt.Errorf("a list of requests in JSON: %w", err)
		}
		data = nil
		for _, one := range list {
			one = bytes.ReplaceAll(one, []byte("\n"), []byte(" "))
			data = append(append(data, one...), '\n')
		}
	}
	if bytes.HasPrefix(data, []byte("{")) {
		out, err = readMooncake(data)
	} else {
		out, err = readAzure(data)
	}
	if err != nil {
		return nil, err
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no request in the trace")
	}
	for i := 1; i < len(out); i++ {
		if out[i].At < out[i-1].At {
			return nil, fmt.Errorf("request %d comes %.3f s before the one above it: sort the trace by time", i+1, out[i-1].At-out[i].At)
		}
	}
	first := out[0].At
	for i := range out {
		out[i].At -= first
	}
	return out, nil
}

func readMooncake(data []byte) ([]Request, error) {
	var out []Request
	seen := map[int64]bool{}
	s := bufio.NewScanner(bytes.NewReader(data))
	s.Buffer(nil, 16<<20)
	for n := 1; s.Scan(); n++ {
		if len(bytes.TrimSpace(s.Bytes())) == 0 {
			continue
		}
		var r struct {
			Timestamp *float64 `json:"timestamp"`
			Input     int      `json:"input_length"`
			Output    *int     `json:"output_length"`
			Blocks    []int64  `json:"hash_ids"`
		}
		if err := json.Unmarshal(s.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if r.Timestamp == nil || *r.Timestamp < 0 || r.Output == nil || r.Input < 1 || *r.Output < 0 || r.Input > maxTokens ||
			*r.Output > maxTokens {
			return nil,
				fmt.Errorf("line %d: want timestamp, input_length and output_length: milliseconds from 0 on, at least one token of a prompt, none below 0",
					n)
		}
		cached, prefix := 0, true
		for _, id := range r.Blocks {
			if prefix = prefix && seen[id]; prefix {
				cached += block
			}
			seen[id] = true
		}
		out = append(out, Request{*r.Timestamp / 1e3, r.Input, max(*r.Output, 1), min(cached, r.Input-1)})
	}
	return out, s.Err()
}

func readAzure(data []byte) ([]Request, error) {
	rows, err := csv.NewReader(bytes.NewReader(data)).ReadAll()
	if err != nil {
		return nil,
			fmt.Errorf("not a trace: want lines of JSON with timestamp, or a table with TIMESTAMP, ContextTokens, GeneratedTokens: %w", err)
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("no request in the trace")
	}
	at := map[string]int{}
	for i, h := range rows[0] {
		at[strings.ToLower(strings.TrimSpace(h))] = i
	}
	var cols [3]int
	for i, names := range columns {
		found := false
		for _, name := range names {
			if c, ok := at[name]; ok && !found {
				cols[i], found = c, true
			}
		}
		if !found {
			return nil, fmt.Errorf("no column %s; there are %s; want TIMESTAMP, ContextTokens, GeneratedTokens",
				names[0], strings.Join(rows[0], ", "))
		}
	}
	var out []Request
	for n, row := range rows[1:] {
		when, err := seconds(row[cols[0]])
		in, err1 := strconv.Atoi(strings.TrimSpace(row[cols[1]]))
		gen, err2 := strconv.Atoi(strings.TrimSpace(row[cols[2]]))
		if err != nil || err1 != nil || err2 != nil || in < 1 || gen < 0 || in > maxTokens || gen > maxTokens {
			return nil, fmt.Errorf("row %d: %s: want a time and two numbers of tokens", n+2, strings.Join(row, ","))
		}
		out = append(out, Request{when, in, max(gen, 1), 0})
	}
	return out, nil
}

// columns are the names of time, prompt and answer in Azure's traces of 2023, 2024 and 2025 (which has NumImages, too), BurstGPT's and
// tables with Mooncake's names.
var columns = [3][]string{{"timestamp", "arrival_timestamp", "time"},
	{"contexttokens", "request tokens", "input_length", "num_prefill_tokens"},
	{"generatedtokens", "response tokens", "output_length", "num_decode_tokens"}}

// seconds reads a time of day or a number of seconds.
func seconds(s string) (float64, error) {
	s = strings.TrimSpace(s)
	if v, err := strconv.ParseFloat(s, 64); err == nil {
		return v, nil
	}
	for _, form := range []string{"2006-01-02 15:04:05.9999999", "2006-01-02 15:04:05.9999999-07:00", time.RFC3339Nano,
		"2006-01-02T15:04:05.9999999"} {
		if t, err := time.Parse(form, s); err == nil {
			return float64(t.UnixNano()) / 1e9, nil
		}
	}
	return 0, fmt.Errorf("time %q", s)
}
