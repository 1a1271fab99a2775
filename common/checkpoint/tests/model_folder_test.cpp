// Models go out to a folder and come back as they were; what does not fit is refused with the place.
#include "common/checkpoint/model_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/checkpoint/safetensors.h"
#include "common/comm/launch.h"
#include "tests/support/temporary_directory.h"

namespace escalera {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// Sizes of which no two are equal.
ModelConfig small_config() {
  ModelConfig config;
  config.vocab_size = 61;
  config.hidden_size = 48;
  config.intermediate_size = 80;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 6;
  config.num_key_value_heads = 2;
  config.max_position_embeddings = 64;
  return config;
}

std::unique_ptr<Ops> one_thread() {
  CpuSettings settings;
  settings.threads = 1;
  return make_cpu_ops(settings);
}

/// A model with its backend.
struct Holder {
  std::unique_ptr<Ops> ops = one_thread();
  Model model;
  Holder(const ModelConfig& config, DType dtype, std::uint64_t seed = 0)
      : Holder(config, dtype, Stage::whole(config), seed, Seams()) {}
  Holder(const ModelConfig& config, DType dtype, const Stage& stage, std::uint64_t seed, const Seams& seams)
      : model(*ops, config, {dtype}, stage, seams) {
    model.allocate();
    if (seed > 0) model.initialize(seed);
  }
  Device& device() { return ops->device(); }
};

void on_one_rank(const std::function<void(Communicator&)>& body) {
  std::exception_ptr failure;
  launch({CommKind::threads, 1}, [&](Communicator& world) {
    try {
      body(world);
    } catch (...) {
      failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
}

void save(Model& model, const std::string& dir) {
  on_one_rank([&](Communicator& world) { save_folder(world, model, dir); });
}

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.bytes() == b.bytes() &&
         std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.bytes())) == 0;
}

/// An exported folder, to be spoilt and loaded.
struct Folder {
  TemporaryDirectory directory;
  ModelConfig config = small_config();
  std::string dir = directory / "model";
  std::string weights = dir + "/model.safetensors";

  Folder() {
    Holder source(config, DType::float32, 5);
    save(source.model, dir);
  }
  /// Writes the weights again after `change` has had its way with the declared tensors.
  void rewrite(const std::function<void(std::vector<TensorInfo>&)>& change) const {
    std::vector<TensorInfo> infos;
    {
      const SafetensorsReader reader(weights);
      for (const auto& [name, info] : reader.tensors()) infos.push_back(info);
    }
    change(infos);
    SafetensorsWriter writer(weights, infos);
    for (const TensorInfo& info : infos) {
      writer.write_values(info.name, std::vector<double>(static_cast<std::size_t>(info.elements()), 0.25));
    }
    writer.finish();
  }
  void edit_config(const std::function<void(Json&)>& change) const {
    Json json = Json::parse(directory.read("model/config.json"));
    change(json);
    directory.write("model/config.json", json.dump());
  }
  /// The message with which loading is refused; "" if it is not. Refusal must leave the weights as they were.
  std::string refusal(const ModelConfig& model_config) const {
    Holder target(model_config, DType::float32, 7), untouched(model_config, DType::float32, 7);
    const std::string message = message_of<UsageError>([&] { load_weights(target.model, dir); });
    EXPECT_TRUE(message.empty() || same_bytes(target.model.flat_weights(), untouched.model.flat_weights()));
    return message;
  }
  std::string refusal() const { return refusal(config); }
};

void expect_parts(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << part << " not in: " << message;
}

// ---- Round trip -----------------------------------------------------------------------------------------------------

TEST(ModelFolder, WeightsComeBackBitwiseInEveryType) {
  for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
    for (const bool tied : {false, true}) {
      ModelConfig config = small_config();
      config.tie_word_embeddings = tied;
      config.head_dim = 10;  // not hidden size / heads
      const TemporaryDirectory directory;
      Holder source(config, dtype, 5), target(config, dtype, 6);
      ASSERT_FALSE(same_bytes(source.model.flat_weights(), target.model.flat_weights()));
      save(source.model, directory / "new/folder");
      load_weights(target.model, directory / "new/folder");
      EXPECT_TRUE(same_bytes(source.model.flat_weights(), target.model.flat_weights()))
          << to_string(dtype) << tied;

      const SafetensorsReader file(directory / "new/folder/model.safetensors");
      EXPECT_EQ(file.contains("lm_head.weight"), !tied);
      EXPECT_EQ(file.tensors().size(), 3 * 9 + (tied ? 2U : 3U));
      for (const auto& [name, info] : file.tensors()) EXPECT_EQ(info.dtype, dtype) << name;
      EXPECT_EQ(file.info("model.norm.weight").shape, (std::vector<Index>{48}));
      EXPECT_EQ(file.info("model.layers.2.self_attn.k_proj.weight").shape, (std::vector<Index>{20, 48}));
      const ModelConfig again = load_model_config(directory / "new/folder");
      EXPECT_EQ(again.head_size(), 10);
      EXPECT_EQ(again.tie_word_embeddings, tied);
    }
  }
}

TEST(ModelFolder, OtherTypesAreConverted) {
  const ModelConfig config = small_config();
  for (const DType from : {DType::float32, DType::float64, DType::bfloat16}) {
    const TemporaryDirectory directory;
    Holder source(config, from, 5);
    save(source.model, directory.path());
    const std::vector<double> values = to_host(source.device(), source.model.flat_weights());
    for (const DType to : {DType::float32, DType::float64, DType::bfloat16}) {
      Holder target(config, to), expected(config, to);
      load_weights(target.model, directory.path());
      Tensor wide = expected.device().empty(1, static_cast<Index>(values.size()), accumulation_dtype(to),
                                            MemoryCategory::workspace);
      from_host(expected.device(), values, wide);
      expected.ops->convert(wide, expected.model.flat_weights());
      EXPECT_TRUE(same_bytes(target.model.flat_weights(), expected.model.flat_weights()))
          << to_string(from) << " to " << to_string(to);
      Index begin = 0;
      for (const Bucket& bucket : target.model.buckets()) {  // master weights keep what the file holds
        EXPECT_TRUE(same_bytes(bucket.master, wide.slice_flat(begin, bucket.size)));
        begin += bucket.size;
      }
    }
  }
}

TEST(ModelFolder, AnOlderExportIsReplaced) {
  const TemporaryDirectory directory;
  Holder first(small_config(), DType::float32, 1), second(small_config(), DType::float32, 2);
  save(first.model, directory.path());
  save(second.model, directory.path());
  load_weights(first.model, directory.path());
  EXPECT_TRUE(same_bytes(first.model.flat_weights(), second.model.flat_weights()));
  EXPECT_EQ(directory.count(), 2);  // nothing temporary stays
}

TEST(ModelFolder, GradientsAreWrittenInTheirOwnType) {
  for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
    const TemporaryDirectory directory;
    Holder holder(small_config(), dtype, 5);
    std::vector<double> values(static_cast<std::size_t>(holder.model.flat_gradients().size()));
    for (std::size_t i = 0; i < values.size(); i++) values[i] = static_cast<double>(i) + 0.5;
    from_host(holder.device(), values, holder.model.flat_gradients());
    on_one_rank([&](Communicator& world) {
      save_gradients(world, holder.model, directory / "gradients.safetensors");
    });

    const SafetensorsReader file(directory / "gradients.safetensors");
    std::size_t begin = 0;
    for (const Bucket& bucket : holder.model.buckets()) {
      for (const Parameter& parameter : bucket.parameters) {
        EXPECT_EQ(file.info(parameter.name).dtype, accumulation_dtype(dtype));
        EXPECT_EQ(file.values(parameter.name).front(),
                  values[begin + static_cast<std::size_t>(parameter.offset)]);
      }
      begin += static_cast<std::size_t>(bucket.size);
    }
  }
}

// ---- Several files, parts of a model --------------------------------------------------------------------------------

/// Splits model.safetensors into two files and an index.
void split_in_two(const Folder& folder) {
  Json index;
  {
    const SafetensorsReader whole(folder.weights);
    for (const bool first : {true, false}) {
      const std::string name =
          first ? "model-00001-of-00002.safetensors" : "model-00002-of-00002.safetensors";
      std::vector<TensorInfo> infos;
      for (const auto& [tensor, info] : whole.tensors()) {
        if ((tensor < "model.layers.1") == first) infos.push_back(info);
      }
      SafetensorsWriter writer(folder.dir + "/" + name, infos);
      for (const TensorInfo& info : infos) {
        writer.write(info.name, whole.bytes(info.name));
        index["weight_map"][info.name] = name;
      }
      writer.finish();
    }
  }
  fs::remove(folder.weights);
  folder.directory.write("model/model.safetensors.index.json", index.dump());
}

TEST(ModelFolder, SeveralFilesWithAnIndexAreRead) {
  const Folder folder;
  split_in_two(folder);
  Holder source(folder.config, DType::float32, 5), target(folder.config, DType::float32);
  load_weights(target.model, folder.dir);
  EXPECT_TRUE(same_bytes(source.model.flat_weights(), target.model.flat_weights()));
}

TEST(ModelFolder, BrokenIndexesAreRefused) {
  const Folder folder;
  split_in_two(folder);
  const std::string path = "model/model.safetensors.index.json";
  const Json index = Json::parse(folder.directory.read(path));
  const auto with = [&](const std::function<void(Json&)>& change) {
    Json changed = index;
    change(changed);
    folder.directory.write(path, changed.dump());
    return folder.refusal();
  };
  expect_parts(with([](Json& json) { json.erase("weight_map"); }),
               {"--init-from", "index.json", "weight_map"});
  expect_parts(with([](Json& json) { json["weight_map"]["model.norm.weight"] = 3; }),
               {"weight_map.model.norm.weight"});
  expect_parts(with([](Json& json) { json["weight_map"]["model.norm.weight"] = "../other.safetensors"; }),
               {"same folder", "../other.safetensors"});
  expect_parts(with([](Json& json) { json["weight_map"]["model.norm.weight"] = "absent.safetensors"; }),
               {"--init-from", "absent.safetensors"});
  expect_parts(with([](Json& json) { json["weight_map"].erase("model.norm.weight"); }),
               {"model.norm.weight"});
  expect_parts(
      with([](Json& json) { json["weight_map"]["model.norm.weight"] = "model-00001-of-00002.safetensors"; }),
      {"model-00001-of-00002.safetensors", "model.norm.weight"});
}

/// The second of two parts of everything that can be split, with two rows or columns of padding.
class SecondHalf final : public TensorRegion {
 public:
  using TensorRegion::TensorRegion;
  Slice split(Index size) const override { return {size / 2, size - size / 2, size - size / 2 + 2}; }
  Slice kv_heads(Index heads) const override { return split(heads); }
  Slice vocabulary(Index size) const override { return split(size); }
};

TEST(ModelFolder, EachRankReadsWhatItsRecordsSay) {
  const Folder folder;
  const std::unique_ptr<Ops> ops = one_thread();
  SecondHalf region(*ops);
  Seams seams;
  seams.region = &region;
  const Stage last{1, 2, false, true};  // layers 1 and 2 and the head
  for (const Stage& stage : {Stage::whole(folder.config), last}) {
    Holder expected(folder.config, DType::float32, stage, 5, seams),
        target(folder.config, DType::float32, stage, 0, seams);
    load_weights(target.model, folder.dir);
    EXPECT_TRUE(same_bytes(expected.model.flat_weights(), target.model.flat_weights()));
  }
}

// ---- What is refused ------------------------------------------------------------------------------------------------

TEST(ModelFolder, MissingFilesAreNamed) {
  const Folder folder;
  Holder target(folder.config, DType::float32);
  expect_parts(message_of<UsageError>([&] { load_weights(target.model, folder.directory / "nowhere"); }),
               {"--init-from", "nowhere", "no such folder"});
  expect_parts(
      message_of<UsageError>([&] { load_weights(target.model, folder.directory.path(), "--model-dir"); }),
      {"--model-dir", "no config.json"});
  fs::remove(folder.weights);
  expect_parts(folder.refusal(), {"--init-from", folder.dir, "no model.safetensors"});
  folder.directory.write("model/model.safetensors", "not a safetensors file");
  expect_parts(folder.refusal(), {"--init-from", folder.weights});
  folder.directory.write("model/config.json", "{");
  expect_parts(folder.refusal(), {"--init-from", "config.json", "line 1"});
}

TEST(ModelFolder, OtherModelsAreRefusedWithBothNumbers) {
  const auto with = [](const char* key, const Json& value) {
    const Folder folder;
    folder.edit_config([&](Json& json) { json[key] = value; });
    return folder.refusal();
  };
  expect_parts(with("hidden_size", 96), {"--init-from", "config.json", "hidden_size is 96", "48"});
  expect_parts(with("vocab_size", 256), {"vocab_size is 256", "61"});
  expect_parts(with("num_hidden_layers", 4), {"num_hidden_layers is 4", "3"});
  expect_parts(with("num_key_value_heads", 3), {"num_key_value_heads is 3", "2"});
  expect_parts(with("intermediate_size", 81), {"intermediate_size is 81", "80"});
  expect_parts(with("head_dim", 16), {"head_dim is 16", "8"});
  expect_parts(with("tie_word_embeddings", true), {"tie_word_embeddings is true", "false"});
  expect_parts(with("rope_theta", 500000.0), {"rope_theta is 500000", "10000"});
  expect_parts(with("rms_norm_eps", 1e-6), {"rms_norm_eps is 1e-06", "1e-05"});
  EXPECT_EQ(with("max_position_embeddings", 4096), "");
  EXPECT_EQ(with("initializer_range", 0.5), "");
}

TEST(ModelFolder, TensorsThatDoNotFitAreNamedWithBothShapes) {
  const auto with = [](const std::function<void(std::vector<TensorInfo>&)>& change) {
    const Folder folder;
    folder.rewrite(change);
    const std::string message = folder.refusal();
    if (!message.empty()) expect_parts(message, {"--init-from", folder.weights});
    return message;
  };
  const auto named = [](std::vector<TensorInfo>& infos, const std::string& name) {
    return std::ranges::find_if(infos, [&](const TensorInfo& info) { return info.name == name; });
  };
  const std::string up = "model.layers.1.mlp.up_proj.weight";
  EXPECT_EQ(with([](auto&) {}), "");
  expect_parts(with([&](auto& infos) { infos.erase(named(infos, up)); }), {up});
  expect_parts(with([&](auto& infos) { named(infos, up)->shape = {48, 80}; }), {up, "[48, 80]", "[80, 48]"});
  expect_parts(with([&](auto& infos) {
                 named(infos, "model.norm.weight")->shape = {1, 48};
               }),
               {"model.norm.weight", "[1, 48]", "[48]"});
  expect_parts(with([&](auto& infos) {
                 infos.push_back({"model.layers.3.mlp.up_proj.weight", DType::float32, {80, 48}});
               }),
               {"model.layers.3.mlp.up_proj.weight", "no place"});
  expect_parts(with([&](auto& infos) {
                 infos.push_back({"model.layers.1.mlp.up_proj.bias", DType::float32, {80}});
               }),
               {"model.layers.1.mlp.up_proj.bias", "no place"});
  // The frequencies in old files of Llama are no surprise.
  EXPECT_EQ(with([](auto& infos) {
              infos.push_back({"model.layers.1.self_attn.rotary_emb.inv_freq", DType::float32, {4}});
            }),
            "");
}

TEST(ModelFolder, TypesThatCannotBeReadAreNamed) {
  const Folder folder;
  std::string bytes = folder.directory.read("model/model.safetensors");
  const std::size_t at = bytes.find("\"F32\"");
  ASSERT_NE(at, std::string::npos);
  bytes.replace(at, 5, "\"I32\"");
  folder.directory.write("model/model.safetensors", bytes);
  expect_parts(folder.refusal(), {"--init-from", folder.weights, "I32"});
}

TEST(ModelFolder, ATiedHeadMayLieInTheFileAndIsNotRead) {
  Folder folder;
  folder.edit_config([](Json& json) { json["tie_word_embeddings"] = true; });
  folder.config.tie_word_embeddings = true;
  EXPECT_EQ(folder.refusal(), "");
}

// ---- What cannot be written -----------------------------------------------------------------------------------------

TEST(ModelFolder, AllRanksLearnThatTheFolderCannotBeMade) {
  const TemporaryDirectory directory;
  const std::string in_the_way = directory.write("file", "");
  for (const bool gradients : {false, true}) {
    std::vector<std::string> messages(3);
    launch({CommKind::threads, 3}, [&](Communicator& world) {
      Holder holder(small_config(), DType::float32, 5);
      messages[static_cast<std::size_t>(world.rank())] = message_of([&] {
        gradients ? save_gradients(world, holder.model, in_the_way + "/gradients")
                  : save_folder(world, holder.model, in_the_way + "/model");
      });
    });
    for (const std::string& message : messages) expect_parts(message, {in_the_way});
  }
}

TEST(ModelFolder, AModelInPartsIsNotWritten) {
  const TemporaryDirectory directory;
  Holder holder(small_config(), DType::float32, Stage{1, 2, false, true}, 5, Seams());
  expect_parts(message_of([&] { save(holder.model, directory / "model"); }),
               {directory / "model", "only a part"});
  EXPECT_FALSE(fs::exists(directory / "model"));
}

}  // namespace
}  // namespace escalera
