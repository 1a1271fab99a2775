// Atomic files: whatever goes wrong, the older file is intact, nothing is left behind and the message names the path.
#include "common/checkpoint/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "tests/support/temporary_directory.h"

namespace escalera {
namespace {

namespace fs = std::filesystem;

/// While it lives, files of this process cannot grow beyond `bytes`: to a program, a full disk.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit{bytes, old_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, handler_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  rlimit old_{};
  void (*handler_)(int) = nullptr;
};

class AtomicFileTest : public ::testing::Test {
 protected:
  TemporaryDirectory directory_;
  const std::string path_ = directory_ / "file";
};

TEST_F(AtomicFileTest, AppearsWhenCommittedAndNotBefore) {
  AtomicFile file(path_);
  file.write(std::as_bytes(std::span("world", 5)), 6);
  file.write(std::as_bytes(std::span("hello ", 6)), 0);
  EXPECT_FALSE(fs::exists(path_));
  file.commit();
  EXPECT_EQ(directory_.read("file"), "hello world");
  EXPECT_EQ(directory_.count(), 1);
}

TEST_F(AtomicFileTest, LeavesTheOlderFileWhenAbandoned) {
  write_file(path_, "old and longer than the new one");
  {
    AtomicFile file(path_);
    file.write(std::as_bytes(std::span("new", 3)), 0);
  }
  EXPECT_EQ(directory_.read("file"), "old and longer than the new one");
  EXPECT_EQ(directory_.count(), 1);
  write_file(path_, "new");
  EXPECT_EQ(directory_.read("file"), "new");
}

// C31: full disk.
TEST_F(AtomicFileTest, AFullDiskIsAnErrorThatNamesThePathAndSparesTheOlderFile) {
  write_file(path_, "old");
  std::string message;
  {
    const FullDisk full(1000);
    message = message_of([&] { write_file(path_, std::string(5000, 'x')); });
  }
  EXPECT_NE(message.find(path_), std::string::npos) << message;
  EXPECT_EQ(directory_.read("file"), "old");
  EXPECT_EQ(directory_.count(), 1);
}

// The fault that this class is there to prevent, planted: the file's own bytes are overwritten in place.
TEST_F(AtomicFileTest, TheFullDiskSpoilsAFileThatIsWrittenInPlace) {
  write_file(path_, "old");
  {
    const FullDisk full(1000);
    directory_.write("file", std::string(5000, 'x'));
  }
  EXPECT_NE(directory_.read("file"), "old");
}

TEST_F(AtomicFileTest, WritesToDevicesDirectlyAndReportsTheirErrors) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  const std::string message = message_of([] { write_file("/dev/full", "x"); });
  EXPECT_NE(message.find("/dev/full"), std::string::npos) << message;
  EXPECT_NE(message.find("No space left"), std::string::npos) << message;
  write_file("/dev/null", "x");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
}

TEST_F(AtomicFileTest, FollowsSymbolicLinksAndKeepsThem) {
  fs::create_directory(directory_ / "elsewhere");
  fs::create_symlink("elsewhere/real", directory_ / "link");
  write_file(directory_ / "link", "first");
  write_file(directory_ / "link", "second");
  EXPECT_TRUE(fs::is_symlink(directory_ / "link"));
  EXPECT_EQ(directory_.read("elsewhere/real"), "second");
}

TEST_F(AtomicFileTest, RefusesPathsThatCannotBeWritten) {
  for (const std::string& path :
       {directory_ / "missing/file", directory_.path(), std::string("/proc/file"), std::string()}) {
    const std::string message = message_of([&] { write_file(path, "x"); });
    EXPECT_NE(message.find(path + ": cannot be written"), std::string::npos) << message;
    const std::string refusal = message_of<UsageError>([&] { check_writable(path, "--export"); });
    EXPECT_NE(refusal.find("--export " + path), std::string::npos) << refusal;
  }
  check_writable(path_, "--export");
  write_file(path_, "old");
  check_writable(path_, "--export");
  EXPECT_EQ(directory_.read("file"), "old");
  EXPECT_EQ(directory_.count(), 1);
}

// Root may write anywhere, so this asks as somebody else, in a child: ranks of other tests are not to lose their rights.
TEST_F(AtomicFileTest, RefusesADirectoryWithoutPermission) {
  fs::permissions(directory_.path(), fs::perms::owner_read | fs::perms::owner_exec | fs::perms::others_exec);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (::getuid() == 0 && ::setuid(65534) != 0) ::_exit(2);
    const std::string message = message_of([&] { write_file(path_, "x"); });
    ::_exit(message.find("Permission denied") != std::string::npos ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  fs::permissions(directory_.path(), fs::perms::owner_all);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 2) GTEST_SKIP() << "cannot become another user";
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace escalera
