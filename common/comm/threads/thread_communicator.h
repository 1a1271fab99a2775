// Ranks as threads of one process: they read each other's memory.
// defines: ThreadCommunicator
#pragma once

#include <memory>
#include <string>

#include "common/comm/operation_queue.h"
#include "common/comm/threads/thread_group.h"

namespace escalera {

/// One rank's end of a ThreadGroup.
class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadGroup> group, int rank);
  ~ThreadCommunicator() override;

  void abort(const std::string& reason) override;
  void check_peers() const override;
  void give_up() override { group_->world().fail(); }

 protected:
  Work start(Call call) override;
  std::unique_ptr<Communicator> do_split(int color, int key, const std::string& name) override;
  void note_phase(const std::string& phase) override;

 private:
  std::shared_ptr<ThreadGroup> find_new_group(int color, int key, const std::string& name, int& new_rank);

  std::shared_ptr<ThreadGroup> group_;
  OperationQueue queue_;
};

}  // namespace escalera
