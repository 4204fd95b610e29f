// A worker of protocol version 1, without extensions: `worker WEBSOCKET-URL TOKEN NAME`. It prints a line for each
// message of the hub, and ends with an error if encoding/json cannot decode one.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/gorilla/websocket"
)

type Message struct {
	Type    string          `json:"type"`
	Payload json.RawMessage `json:"payload,omitempty"`
	Error   string          `json:"error,omitempty"`
}

type Slots struct {
	BatchTotal   int `json:"batch_total"`
	BatchInUse   int `json:"batch_in_use"`
	ServiceTotal int `json:"service_total"`
	ServiceInUse int `json:"service_in_use"`
}

type GPUInfo struct {
	GPUType  string   `json:"gpu_type"`
	Count    int      `json:"count"`
	Devices  []string `json:"devices"`
	Driver   string   `json:"driver"`
	MemTotal uint64   `json:"mem_total"`
}

type Capabilities struct {
	GPUBackend string  `json:"gpu_backend"`
	GPUCount   int     `json:"gpu_count"`
	GPUType    string  `json:"gpu_type"`
	VRAMGB     float64 `json:"vram_gb"`
	CPUCount   int     `json:"cpu_count"`
	MemoryGB   float64 `json:"memory_gb"`
	Hostname   string  `json:"hostname"`
	GPUInfo    GPUInfo `json:"gpu_info"`
}

type ActiveTask struct {
	TaskID    string    `json:"task_id"`
	State     string    `json:"state"`
	StartedAt time.Time `json:"started_at"`
}

type Registration struct {
	ID           string       `json:"id"`
	Capabilities Capabilities `json:"capabilities"`
	ActiveTasks  []ActiveTask `json:"active_tasks"`
}

type Heartbeat struct {
	WorkerID   string       `json:"worker_id"`
	Slots      Slots        `json:"slots"`
	Capability Capabilities `json:"capability"`
}

type Ready struct {
	WorkerID string `json:"worker_id"`
	Slots    Slots  `json:"slots"`
	Reason   string `json:"reason"`
}

type Result struct {
	TaskID   string `json:"task_id"`
	State    string `json:"state"`
	ExitCode int    `json:"exit_code"`
	Error    string `json:"error,omitempty"`
}

type Health struct {
	TaskID  string `json:"task_id"`
	Healthy bool   `json:"healthy"`
	Message string `json:"message,omitempty"`
}

type HealthCheck struct {
	Liveness  string `json:"liveness"`
	Readiness string `json:"readiness"`
	Interval  int    `json:"interval_secs"`
}

type Spec struct {
	ID              string            `json:"id"`
	Type            string            `json:"type"`
	SlotPool        string            `json:"slot_pool"`
	UserID          string            `json:"user_id"`
	JobTier         string            `json:"job_tier"`
	GPUCount        int               `json:"gpu_count"`
	GPUType         string            `json:"gpu_type"`
	GPUBackend      string            `json:"gpu_backend"`
	MinVRAMGB       float64           `json:"min_vram_gb"`
	MinCPUCores     int               `json:"min_cpu_cores"`
	MinMemoryGB     float64           `json:"min_memory_gb"`
	NodeCount       int               `json:"node_count"`
	MaxRuntimeHours int               `json:"max_runtime_hours"`
	Command         []string          `json:"command"`
	Env             map[string]string `json:"env"`
	Prolog          []string          `json:"prolog"`
	Epilog          []string          `json:"epilog"`
	SnapshotID      string            `json:"snapshot_id"`
	SnapshotSHA     string            `json:"snapshot_sha"`
	HealthCheck     *HealthCheck      `json:"health_check"`
	Metadata        map[string]string `json:"metadata"`
}

type Assign struct {
	Spec          Spec          `json:"spec"`
	RemainingTime time.Duration `json:"remaining_time"`
}

type Named struct {
	TaskID      string `json:"task_id"`
	Reason      string `json:"reason"`
	SnapshotSHA string `json:"snapshot_sha"`
}

type Worker struct {
	name    string
	socket  *websocket.Conn
	sending sync.Mutex
	running sync.Map
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func (w *Worker) send(kind string, payload interface{}) {
	w.sending.Lock()
	defer w.sending.Unlock()
	data, err := json.Marshal(payload)
	must(err)
	must(w.socket.WriteJSON(Message{Type: kind, Payload: data}))
}

func (w *Worker) decode(message Message, payload interface{}) {
	if err := json.Unmarshal(message.Payload, payload); err != nil {
		log.Fatalf("%s: %v in %s", message.Type, err, message.Payload)
	}
}

func (w *Worker) run(spec Spec) {
	w.send("job_accepted", map[string]string{"task_id": spec.ID})
	command := exec.Command(spec.Command[0], spec.Command[1:]...)
	must(command.Start())
	w.running.Store(spec.ID, command)
	if spec.Type == "service" {
		w.send("service_health", Health{TaskID: spec.ID, Healthy: true})
	}
	result := Result{TaskID: spec.ID, State: "completed"}
	if err := command.Wait(); err != nil {
		result.State, result.ExitCode, result.Error = "failed", command.ProcessState.ExitCode(), err.Error()
	}
	if _, stillRunning := w.running.LoadAndDelete(spec.ID); !stillRunning {
		result.State, result.Error = "cancelled", ""
	}
	w.send("job_result", result)
}

func (w *Worker) hear(message Message) {
	switch message.Type {
	case "job_assign":
		var assign Assign
		w.decode(message, &assign)
		fmt.Println("job_assign", assign.Spec.ID, assign.Spec.Type, assign.RemainingTime)
		go w.run(assign.Spec)
	case "job_cancel", "prewarm_hint":
		var named Named
		w.decode(message, &named)
		fmt.Println(message.Type, named.TaskID, named.Reason+named.SnapshotSHA)
		if command, isRunning := w.running.LoadAndDelete(named.TaskID); message.Type == "job_cancel" && isRunning {
			must(command.(*exec.Cmd).Process.Kill())
		}
	default:
		fmt.Println(message.Type, message.Error)
		if message.Error != "" {
			os.Exit(1)
		}
	}
}

func main() {
	header := http.Header{"Authorization": {"Bearer " + os.Args[2]}}
	socket, _, err := websocket.DefaultDialer.Dial(os.Args[1], header)
	must(err)
	w := &Worker{name: os.Args[3], socket: socket}
	offer := Capabilities{GPUBackend: "nvidia", GPUCount: 2, GPUType: "A100", VRAMGB: 160, CPUCount: 8, MemoryGB: 64,
		Hostname: w.name, GPUInfo: GPUInfo{GPUType: "A100", Count: 2, Driver: "550.54.15", MemTotal: 160 << 30}}
	slots := Slots{BatchTotal: 1, ServiceTotal: 1}
	w.send("register", Registration{ID: w.name, Capabilities: offer})
	w.send("ready_for_work", Ready{WorkerID: w.name, Slots: slots, Reason: "idle"})
	w.send("heartbeat", Heartbeat{WorkerID: w.name, Slots: slots, Capability: offer})
	for {
		var message Message
		must(socket.ReadJSON(&message))
		w.hear(message)
	}
}
