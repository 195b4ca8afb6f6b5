//go:build !linux

package lab

import (
	"context"
	"errors"
	"io"
	"net"

	"github.com/weft-fabric/weft/fabric/network/check"
)

var errLinux = errors.New("a lab takes Linux: it is made of network namespaces")

// Progress is a line that init says while the lab comes up.
type Progress struct {
	Step    string
	Ready   bool
	Seconds float64
	Error   string
}

// Info is what a running lab says of itself.
type Info struct {
	PID  int
	Spec Spec
}

// Init is the first process of a lab.
func Init(io.Reader, io.Writer, net.Listener) error { return errLinux }

// Check says what keeps a lab from starting here.
func Check(*Spec) error { return errLinux }

// Up brings a lab up.
func Up(*Spec, func(Progress)) error { return errLinux }

// Find asks a lab what it is.
func Find(string) (*Info, error) { return nil, errLinux }

// List names the labs.
func List() ([]string, error) { return nil, errLinux }

// Down ends a lab.
func Down(string) error { return errLinux }

// Command is a command line that runs inside a node.
func (*Info) Command(string, ...string) ([]string, error) { return nil, errLinux }

// Entry is what stands before a command for it to use a node's network.
func (*Info) Entry(string) []string { return nil }

// Drill plants a fault.
func (*Info) Drill(context.Context, string, DrillConfig) (*Drill, error) { return nil, errLinux }

// Look asks the kernels of all nodes what their ports do.
func (*Info) Look(*State) (*State, error) { return nil, errLinux }

// Collect asks every node.
func (*Info) Collect() (check.Readings, error) { return nil, errLinux }

// Enter has nothing to enter.
func (i *Info) Enter() error { return errLinux }

// Traffic sends bytes between hosts.
func (*Info) Traffic(TrafficConfig) ([]Transfer, error) { return nil, errLinux }
