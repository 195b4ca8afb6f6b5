// Package spell finds the word that a user meant.
package spell

import (
	"fmt"
	"strings"
)

// longest bounds the words that are compared: what is longer is no slip of a key.
const longest = 80

// Distance is how many letters must be changed, added or removed to make one word
// of another (Levenshtein's distance), or limit where it is not below that.
func Distance(a, b string, limit int) int {
	if len(a) > longest || len(b) > longest || len(a)-len(b) >= limit || len(b)-len(a) >= limit {
		return limit
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return min(row[len(b)], limit)
}

// Nearest is the first of the known words with the fewest letters changed, or "" if
// it takes more than two.
func Nearest(word string, known []string) string {
	best, nearest := 3, ""
	for _, k := range known {
		if d := Distance(word, k, best); d < best {
			best, nearest = d, k
		}
	}
	return nearest
}

// Meant is the question that an error asks before it lists what is known, "" if no known word is near.
func Meant(word string, known []string) string {
	if nearest := Nearest(strings.ToLower(word), known); nearest != "" {
		return fmt.Sprintf("did you mean %q? ", nearest)
	}
	return ""
}
