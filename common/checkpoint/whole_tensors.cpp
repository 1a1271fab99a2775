#include "common/checkpoint/whole_tensors.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <map>
#include <nlohmann/json.hpp>

namespace escalera {
namespace {

using Piece = WholeTensors::Whole::Piece;
using nlohmann::json;

json to_json(const Parameter& parameter, const Range& part) {
  return {parameter.name,        parameter.rows,       parameter.columns,      parameter.decay, static_cast<int>(parameter.split),
          parameter.slice.begin, parameter.slice.size, parameter.slice.padded, part.begin,      part.end};
}

Piece to_piece(int rank, const json& line) {
  Piece piece;
  piece.rank = rank;
  Parameter& record = piece.record;
  record.name = line[0];
  record.rows = line[1], record.columns = line[2];
  record.decay = line[3];
  record.split = static_cast<Parameter::Split>(line[4].get<int>());
  record.slice.begin = line[5], record.slice.size = line[6], record.slice.padded = line[7];
  piece.part = {line[8], line[9]};
  return piece;
}

/// Elements of a piece that are not padding.
Index real_elements(const Piece& piece) {
  Index count = 0;
  piece.record.for_each_stretch(piece.part, [&](Index, Index, Index stretch) { count += stretch; });
  return count;
}

bool is_replica(const Piece& a, const Piece& b) {
  return a.record.slice.begin == b.record.slice.begin && a.record.slice.size == b.record.slice.size &&
         a.part.begin == b.part.begin && a.part.end == b.part.end;
}

/// Throws unless there is something of every unit that the model has.
void check_complete(const ModelConfig& config, const std::map<std::string, std::size_t>& names) {
  const auto require_any = [&](const std::string& prefix) {
    const auto found = names.lower_bound(prefix);
    require(found != names.end() && found->first.starts_with(prefix),
            "the ranks hold only a part of the model: nothing of {}", prefix);
  };
  require_any("model.embed_tokens.");
  for (Index layer = 0; layer < config.num_hidden_layers; layer++) require_any(fmt::format("model.layers.{}.", layer));
  require_any("model.norm.");
  if (!config.tie_word_embeddings) require_any("lm_head.");
}

const Tensor& shard_of(const Bucket& bucket, Held held) {
  return held == Held::weights ? bucket.weight_shard : held == Held::gradients ? bucket.gradient_shard : bucket.master;
}

}  // namespace

WholeTensors::WholeTensors(Communicator& world, Model& model) : world_(world), model_(model) {
  json mine = json::array();
  for (const Bucket& bucket : model.buckets()) {
    for (const Parameter& parameter : bucket.parameters) mine.push_back(to_json(parameter, bucket.in_shard(parameter)));
  }
  std::map<std::string, std::size_t> number_of;
  const std::vector<std::string> all = world.gather_strings(mine.dump());
  for (std::size_t rank = 0; rank < all.size(); rank++) {
    for (const json& line : json::parse(all[rank])) {
      const Piece piece = to_piece(static_cast<int>(rank), line);
      const auto [place, is_new] = number_of.try_emplace(piece.record.name, parameters_.size());
      if (is_new) parameters_.push_back({piece.record, {}});
      std::vector<Piece>& pieces = parameters_[place->second].pieces;
      const bool known = std::ranges::any_of(pieces, [&](const Piece& other) { return is_replica(piece, other); });
      if (!known && real_elements(piece) > 0) pieces.push_back(piece);
    }
  }
  check_complete(model.config(), number_of);
  for (const Whole& whole : parameters_) {
    Index held = 0;
    for (const Piece& piece : whole.pieces) held += real_elements(piece);
    const Index size = whole.parameter.rows * whole.parameter.columns;
    require(held == size, "{} has {} elements, but the ranks hold {} between them", whole.parameter.name, size, held);
  }
}

void WholeTensors::collect(Held held, const std::function<void(const Parameter&, std::span<const std::byte>)>& use) {
  Device& device = model_.ops().device();
  const DType dtype = held == Held::weights ? model_.options().dtype : accumulation_dtype(model_.options().dtype);
  const auto element = static_cast<std::size_t>(size_of(dtype));
  std::map<std::string, std::pair<const Bucket*, const Parameter*>> here;
  for (const Bucket& bucket : model_.buckets()) {
    for (const Parameter& parameter : bucket.parameters) here[parameter.name] = {&bucket, &parameter};
  }

  std::exception_ptr failure;  // the others go on sending, so this rank goes on receiving
  std::vector<std::byte> values, buffer;
  for (const Whole& whole : parameters_) {
    if (world_.rank() == 0) {
      values.assign(static_cast<std::size_t>(whole.parameter.rows * whole.parameter.columns) * element, std::byte{0});
    }
    for (const Piece& piece : whole.pieces) {
      if (piece.rank != world_.rank() && world_.rank() != 0) continue;
      buffer.resize(static_cast<std::size_t>(piece.part.size()) * element);
      const BufferView view(buffer.data(), piece.part.size(), dtype);
      if (piece.rank == world_.rank()) {
        const auto [bucket, parameter] = here.at(whole.parameter.name);
        const Index begin = parameter->offset + piece.part.begin - bucket->shard_begin;
        const Tensor part = shard_of(*bucket, held).slice_flat(begin, piece.part.size());
        device.copy_to_host(buffer.data(), part.data(), part.bytes());
        if (piece.rank != 0) world_.send(view, 0);
      } else {
        world_.recv(view, piece.rank);
      }
      if (world_.rank() != 0) continue;
      piece.record.for_each_stretch(piece.part, [&](Index local, Index global, Index count) {
        std::memcpy(values.data() + static_cast<std::size_t>(global) * element,
                    buffer.data() + static_cast<std::size_t>(local - piece.part.begin) * element,
                    static_cast<std::size_t>(count) * element);
      });
    }
    if (world_.rank() == 0 && !failure) {
      try {
        use(whole.parameter, values);
      } catch (...) {
        failure = std::current_exception();
      }
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace escalera
