// Runs a program the way a shell does: in a process of its own, with a time limit, keeping what it says.
// defines: ProcessOptions, ProcessResult, Process, run_process(), processes_mentioning()
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace escalera {

/// How a process is started.
struct ProcessOptions {
  std::map<std::string, std::string> environment;  ///< set on top of this process's own
  double time_limit = 240;                         ///< seconds from the start; then it is ended by force
};

/// How a process ended.
struct ProcessResult {
  int exit_code = -1;      ///< as a shell reports it: 128 + signal if a signal ended it
  bool timed_out = false;  ///< the time limit was reached
  std::string out, err;    ///< all that it wrote to stdout and stderr
};

/// A process that runs beside the test. Ended by force if it still runs when this object goes.
class Process {
 public:
  /// Starts arguments[0], looked for in PATH unless it has a slash. Its standard input is empty. A program that cannot be
  /// started ends with exit code 127.
  explicit Process(const std::vector<std::string>& arguments, const ProcessOptions& options = {});
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t id() const { return id_; }
  /// What it has written to stdout so far.
  std::string output() const;
  /// Waits until stdout has `text`. false if the process ends, or the time limit is reached, without it.
  bool wait_for_output(const std::string& text);
  /// Sends a signal to the process itself, as `kill` does.
  void signal(int number) const;
  /// Waits for the end, or for the time limit.
  ProcessResult wait();

 private:
  bool ended();  // notices the end; does not wait
  bool late() const;
  void end_by_force();

  pid_t id_ = -1;
  int out_ = -1, err_ = -1;  // files without a name: unlike a pipe, they never fill up
  int status_ = 0;
  bool ended_ = false, timed_out_ = false;
  std::chrono::steady_clock::time_point deadline_;
};

/// Starts a process and waits for its end.
ProcessResult run_process(const std::vector<std::string>& arguments, const ProcessOptions& options = {});

/// Processes of this machine with `text` in their command line, without the calling one. A path in a test's own temporary
/// directory finds all ranks of the test's job and nothing else.
std::vector<pid_t> processes_mentioning(const std::string& text);

/// The value of a variable in the environment that process `id` was started with; "" if it has none or is gone.
std::string environment_of(pid_t id, const std::string& variable);

}  // namespace escalera
