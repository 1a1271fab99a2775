#include "tests/support/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "common/core/error.h"

extern char** environ;

namespace escalera {
namespace {

using Clock = std::chrono::steady_clock;

void pause_briefly() {
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

std::string contents(int file) {
  struct stat about = {};
  if (fstat(file, &about) != 0) return "";
  std::string text(static_cast<std::size_t>(about.st_size), '\0');
  std::size_t done = 0;
  while (done < text.size()) {
    // At an offset of our own: the process shares the file's position and goes on writing there.
    const ssize_t got = pread(file, text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (got <= 0) break;
    done += static_cast<std::size_t>(got);
  }
  text.resize(done);
  return text;
}

std::string whole_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

int memory_file(const char* name) {
  const int file = memfd_create(name, MFD_CLOEXEC);
  require(file >= 0, "no memory for the output of a process");
  return file;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

}  // namespace

Process::Process(const std::vector<std::string>& arguments, const ProcessOptions& options)
    : out_(memory_file("stdout")),
      err_(memory_file("stderr")),
      deadline_(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                   std::chrono::duration<double>(options.time_limit))) {
  // All memory is taken before fork(): the child of a process with threads may only make system calls.
  std::vector<std::string> words = arguments, environment;
  for (char** entry = environ; *entry != nullptr; entry++) {
    const std::string text = *entry;
    if (!options.environment.contains(text.substr(0, text.find('=')))) environment.push_back(text);
  }
  for (const auto& [name, value] : options.environment) environment.push_back(name + "=" + value);
  std::vector<char*> argv = pointers(words), envp = pointers(environment);
  id_ = fork();
  require(id_ >= 0, "fork failed");
  if (id_ == 0) {
    // A process group of its own, so that it can be ended together with what it has started.
    setpgid(0, 0);
    // A shell that started the tests in the background has Ctrl-C ignored, and that would be inherited.
    ::signal(SIGINT, SIG_DFL);
    const int nothing = open("/dev/null", O_RDONLY);
    dup2(nothing, STDIN_FILENO);
    dup2(out_, STDOUT_FILENO);
    dup2(err_, STDERR_FILENO);
    execvpe(argv[0], argv.data(), envp.data());
    _exit(127);
  }
  setpgid(id_, id_);  // here too: whoever comes first
}

Process::~Process() {
  if (!ended()) end_by_force();
  close(out_);
  close(err_);
}

bool Process::late() const {
  return Clock::now() > deadline_;
}

std::string Process::output() const {
  return contents(out_);
}

bool Process::wait_for_output(const std::string& text) {
  while (true) {
    // In this order: what it writes last is not missed.
    const bool over = ended() || late();
    if (output().find(text) != std::string::npos) return true;
    if (over) return false;
    pause_briefly();
  }
}

void Process::signal(int number) const {
  if (!ended_) kill(id_, number);
}

bool Process::ended() {
  if (!ended_) ended_ = waitpid(id_, &status_, WNOHANG) == id_;
  return ended_;
}

void Process::end_by_force() {
  // mpirun, asked politely twice, ends its ranks, which have process groups of their own.
  for (const int number : {SIGTERM, SIGTERM, SIGKILL}) {
    kill(-id_, number);
    const auto patience = Clock::now() + std::chrono::seconds(3);
    while (!ended() && Clock::now() < patience) pause_briefly();
    if (ended_) return;
  }
}

ProcessResult Process::wait() {
  while (!ended() && !late()) pause_briefly();
  if (!ended_) {
    timed_out_ = true;
    end_by_force();
  }
  ProcessResult result;
  result.exit_code = WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
  result.timed_out = timed_out_;
  result.out = contents(out_);
  result.err = contents(err_);
  return result;
}

ProcessResult run_process(const std::vector<std::string>& arguments, const ProcessOptions& options) {
  return Process(arguments, options).wait();
}

std::vector<pid_t> processes_mentioning(const std::string& text) {
  std::vector<pid_t> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const std::string name = entry.path().filename();
    if (!std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; })) continue;
    const auto id = static_cast<pid_t>(std::stol(name));
    // A process that goes while we look has an empty command line, as a zombie has.
    if (id != getpid() && whole_file(entry.path() / "cmdline").find(text) != std::string::npos)
      found.push_back(id);
  }
  return found;
}

std::string environment_of(pid_t id, const std::string& variable) {
  const std::string all = '\0' + whole_file(fmt::format("/proc/{}/environ", id));
  const std::string key = '\0' + variable + "=";
  const auto at = all.find(key);
  if (at == std::string::npos) return "";
  const auto begin = at + key.size();
  return all.substr(begin, all.find('\0', begin) - begin);
}

}  // namespace escalera
