// Writing, and the conversion of elements.

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

#include "common/checkpoint/safetensors.h"

namespace escalera {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

const char* stored_name(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return "F32";
    case DType::float64:
      return "F64";
    case DType::bfloat16:
      return "BF16";
  }
  fail("unknown element type");
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<TensorInfo> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : file_(path) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return size_of(a.dtype) > size_of(b.dtype);
  });
  nlohmann::ordered_json header;
  header["__metadata__"]["format"] = "pt";
  for (const auto& [key, note] : metadata) header["__metadata__"][key] = note;
  Index offset = 0;
  for (const TensorInfo& tensor : tensors) {
    require(tensor.name != "__metadata__", "{}: no tensor can have the name __metadata__", path);
    require(!places_.contains(tensor.name), "{}: tensor {} is declared twice", path, tensor.name);
    const bool valid =
        std::all_of(tensor.shape.begin(), tensor.shape.end(), [](Index size) { return size >= 0; });
    require(valid, "{}: tensor {} has a negative size in its shape", path, tensor.name);
    header[tensor.name] = {{"dtype", stored_name(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + tensor.bytes()}}};
    places_[tensor.name] = {tensor, offset};
    offset += tensor.bytes();
  }

  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception& error) {
    fail("{}: {}", path, error.what());
  }
  // The length before it is 8 bytes long, so this aligns the data to 8 bytes.
  text.append((8 - text.size() % 8) % 8, ' ');
  const std::uint64_t length = text.size();
  file_.write(std::as_bytes(std::span(&length, 1)), 0);
  file_.write(std::as_bytes(std::span(text)), sizeof length);
  for (auto& [name, place] : places_) place.offset += static_cast<Index>(sizeof length + length);
}

void SafetensorsWriter::write(const std::string& name, std::span<const std::byte> bytes) {
  const auto found = places_.find(name);
  require(found != places_.end(), "{}: tensor {} was not declared", file_.path(), name);
  Place& place = found->second;
  require(!place.written, "{}: tensor {} is written twice", file_.path(), name);
  require(static_cast<Index>(bytes.size()) == place.info.bytes(), "{}: {} bytes for tensor {}, which has {}",
          file_.path(), bytes.size(), name, place.info.bytes());
  file_.write(bytes, place.offset);
  place.written = true;
}

void SafetensorsWriter::write_values(const std::string& name, std::span<const double> values) {
  const auto found = places_.find(name);
  require(found != places_.end(), "{}: tensor {} was not declared", file_.path(), name);
  write(name, encode_values(values, found->second.info.dtype));
}

void SafetensorsWriter::finish() {
  for (const auto& [name, place] : places_) {
    require(place.written, "{}: tensor {} was declared but not written", file_.path(), name);
  }
  file_.commit();
}

std::vector<std::byte> encode_values(std::span<const double> values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * static_cast<std::size_t>(size_of(dtype)));
  dispatch(dtype, [&]<class T>() {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const T value = static_cast<T>(static_cast<Accumulator<T>>(values[i]));
      std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
    }
  });
  return bytes;
}

std::vector<double> decode_values(std::span<const std::byte> bytes, DType dtype) {
  const auto width = static_cast<std::size_t>(size_of(dtype));
  require(bytes.size() % width == 0, "{} bytes are not a whole number of {}", bytes.size(), to_string(dtype));
  std::vector<double> values(bytes.size() / width);
  dispatch(dtype, [&]<class T>() {
    for (std::size_t i = 0; i < values.size(); ++i) {
      T value;
      std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
      values[i] = static_cast<double>(static_cast<Accumulator<T>>(value));
    }
  });
  return values;
}

}  // namespace escalera
