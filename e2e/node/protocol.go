package node

// Setup is the first message to a node.
type Setup struct {
	Dir       string // the cluster's folder; State(Dir) becomes a tmpfs
	Cgroup    string // name of the cgroup that holds everything
	LogDir    string // each program's output goes to <name>.log there
	Interface string // the node's network interface, already there
	Address   string // its address, with the length of the prefix
	Services  string // service addresses, to be routed somewhere: they are rewritten on the way
}

// Command is every later message.
type Command struct {
	Do      string // start, stop, pause, resume, check
	Name    string
	Program *Program `json:",omitempty"` // start: leave out to start again what ran before
}

// Program is what to run.
type Program struct {
	Path string
	Args []string
}

// Reply answers each message, in order.
type Reply struct {
	Error string `json:",omitempty"`
}

// What a Command can do.
const (
	Start  = "start"
	Stop   = "stop"   // kill -9, and wait until it has ended
	Pause  = "pause"  // SIGSTOP: its connections stay open and nothing is answered
	Resume = "resume" // SIGCONT
	Check  = "check"  // an error if a program has ended that was not stopped
)

// State is where the cluster's programs keep their data: in memory, and only
// to be seen inside.
func State(dir string) string { return dir + "/state" }
