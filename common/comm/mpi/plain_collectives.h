// The collectives by MPI's own, for groups that span several hosts (and wherever ESCALERA_COMM_PATH=mpi asks for it).
// defines: PlainCollectives
#pragma once

#include <mpi.h>

#include <string>

#include "common/comm/communicator.h"
#include "common/comm/mpi/mpi_job.h"

namespace escalera {

/// Carries out calls on one MPI communicator. bfloat16 travels as float32 where it is added up. The order of sums is MPI's.
class PlainCollectives {
 public:
  PlainCollectives(MPI_Comm comm, const MpiJob& job, std::string name);
  ~PlainCollectives();
  PlainCollectives(const PlainCollectives&) = delete;
  PlainCollectives& operator=(const PlainCollectives&) = delete;

  /// Carries out `call`, which is no transfer. Throws Error on all ranks if their calls differ.
  void run(const Call& call);

 private:
  void compare(const Call& call);
  void reduce(const Call& call);
  void all_to_all(const Call& call);
  void wait(MPI_Request request);

  MPI_Comm comm_;
  const MpiJob& job_;
  std::string name_;
  int rank_ = 0;
  int size_ = 1;
  MPI_Op max_ = MPI_OP_NULL;  // one that lets NaN through
};

}  // namespace escalera
