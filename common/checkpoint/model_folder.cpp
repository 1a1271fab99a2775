// Saving; model_folder_load.cpp is the way back.
#include "common/checkpoint/model_folder.h"

#include <exception>
#include <filesystem>
#include <functional>
#include <optional>
#include <system_error>

#include "common/checkpoint/parameter_names.h"
#include "common/checkpoint/safetensors.h"
#include "common/checkpoint/whole_tensors.h"

namespace escalera {
namespace {

namespace fs = std::filesystem;

/// Runs `step` on rank 0 unless something went wrong before, and keeps what went wrong in `problem`.
void attempt(Communicator& world, const std::string& path, std::string& problem, const std::function<void()>& step) {
  if (world.rank() != 0 || !problem.empty()) return;
  try {
    step();
  } catch (const Error& error) {
    problem = error.what();
  } catch (const std::exception& error) {  // out of memory, say
    problem = fmt::format("{}: cannot be written: {}", path, error.what());
  }
}

/// Rank 0 tells the others how it went, so that no rank takes a file for written that is not there.
void share_problem(Communicator& world, const std::string& mine) {
  const std::string problem = world.gather_strings(mine).front();
  if (problem.empty()) return;
  if (world.rank() == 0) throw Error(problem);
  throw PeerError(problem);
}

/// What the ranks hold between them; `path` is where it is to go, for messages.
WholeTensors whole_tensors(Communicator& world, Model& model, const std::string& path) {
  try {
    return {world, model};
  } catch (const PeerError&) {
    throw;
  } catch (const Error& error) {
    fail("{}: cannot be written: {}", path, error.what());
  }
}

/// Rank 0 writes what all ranks hold, in the type that it has.
void write_tensors(Communicator& world, WholeTensors& whole, const std::string& file, DType dtype, Held held,
                   std::string& problem) {
  std::optional<SafetensorsWriter> writer;
  attempt(world, file, problem, [&] {
    std::vector<TensorInfo> infos;
    for (const WholeTensors::Whole& entry : whole.parameters()) {
      infos.push_back({entry.parameter.name, dtype, hugging_face_shape(entry.parameter)});
    }
    writer.emplace(file, infos);
  });
  whole.collect(held, [&](const Parameter& parameter, std::span<const std::byte> values) {
    attempt(world, file, problem, [&] { writer->write(parameter.name, values); });
  });
  attempt(world, file, problem, [&] { writer->finish(); });
}

}  // namespace

void save_folder(Communicator& world, Model& model, const std::string& dir) {
  WholeTensors whole = whole_tensors(world, model, dir);
  std::string problem;
  attempt(world, dir, problem, [&] {
    std::error_code error;
    fs::create_directories(dir, error);
    require(!error, "{}: the folder cannot be made: {}", dir, error.message());
  });
  // The weights are what may not fit on the disk. Written first, their failure leaves an older export as it was.
  const DType dtype = model.options().dtype;
  write_tensors(world, whole, (fs::path(dir) / "model.safetensors").string(), dtype, Held::weights, problem);
  attempt(world, dir, problem,
          [&] { write_file((fs::path(dir) / "config.json").string(), to_json(model.config(), dtype)); });
  share_problem(world, problem);
}

void save_gradients(Communicator& world, Model& model, const std::string& file) {
  WholeTensors whole = whole_tensors(world, model, file);
  std::string problem;
  write_tensors(world, whole, file, accumulation_dtype(model.options().dtype), Held::gradients, problem);
  share_problem(world, problem);
}

}  // namespace escalera
