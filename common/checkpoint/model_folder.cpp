// Saving; model_folder_load.cpp is the way back.
#include "common/checkpoint/model_folder.h"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <functional>
#include <system_error>

#include "common/checkpoint/parameter_names.h"
#include "common/checkpoint/safetensors.h"

namespace escalera {
namespace {

namespace fs = std::filesystem;

/// Whether this rank holds every element of every parameter: no pipeline stage, no split, no shard.
bool is_whole(const Model& model) {
  const auto units = static_cast<Index>(model.units().size());
  if (units != model.config().num_hidden_layers + 2) return false;  // embedding and head
  return std::ranges::all_of(model.buckets(), [](const Bucket& bucket) {
    return bucket.shard_size == bucket.size &&
           std::ranges::all_of(bucket.parameters, [](const Parameter& parameter) {
             return parameter.local_size() == parameter.rows * parameter.columns;
           });
  });
}

/// Runs `write` on rank 0. The others learn how it went, so that no rank takes a file for written that is not there.
void on_rank_0(Communicator& world, const Model& model, const std::string& path,
               const std::function<void()>& write) {
  std::string problem;
  if (world.sum(Index{is_whole(model) ? 0 : 1}) != 0) {
    problem = fmt::format(
        "{}: cannot be written: it needs ranks that hold the whole model, and some hold only a part", path);
  } else if (world.rank() == 0) {
    try {
      write();
    } catch (const Error& error) {
      problem = error.what();
    } catch (const std::exception& error) {  // out of memory, say
      problem = fmt::format("{}: cannot be written: {}", path, error.what());
    }
  }
  problem = world.gather_strings(problem).front();
  if (problem.empty()) return;
  if (world.rank() == 0) throw Error(problem);
  throw PeerError(problem);
}

/// Writes weights or gradients, as `tensor_of` picks them, in the type `dtype` that they have.
void write_tensors(Model& model, const std::string& file, DType dtype,
                   Tensor (Bucket::*tensor_of)(int) const) {
  std::vector<TensorInfo> infos;
  for (const Bucket& bucket : model.buckets()) {
    for (const Parameter& parameter : bucket.parameters) {
      infos.push_back({parameter.name, dtype, hugging_face_shape(parameter)});
    }
  }
  SafetensorsWriter writer(file, infos);
  Device& device = model.ops().device();
  for (const Bucket& bucket : model.buckets()) {
    for (std::size_t number = 0; number < bucket.parameters.size(); number++) {
      const Tensor tensor = (bucket.*tensor_of)(static_cast<int>(number));
      std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.bytes()));
      device.copy_to_host(bytes.data(), tensor.data(), tensor.bytes());
      writer.write(bucket.parameters[number].name, bytes);
    }
  }
  writer.finish();
}

}  // namespace

void save_folder(Communicator& world, Model& model, const std::string& dir) {
  on_rank_0(world, model, dir, [&] {
    std::error_code error;
    fs::create_directories(dir, error);
    require(!error, "{}: the folder cannot be made: {}", dir, error.message());
    // The weights are what may not fit on the disk. Written first, their failure leaves an older export as it was.
    const DType dtype = model.options().dtype;
    write_tensors(model, (fs::path(dir) / "model.safetensors").string(), dtype, &Bucket::weight);
    write_file((fs::path(dir) / "config.json").string(), to_json(model.config(), dtype));
  });
}

void save_gradients(Communicator& world, Model& model, const std::string& file) {
  on_rank_0(world, model, file, [&] {
    write_tensors(model, file, accumulation_dtype(model.options().dtype), &Bucket::gradient);
  });
}

}  // namespace escalera
