// Reading: nothing in the header is believed before it has been checked. A file may have been cut off by a
// full disk, damaged on the way, or made to do harm.

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "common/checkpoint/safetensors.h"

namespace escalera {
namespace {

using nlohmann::json;

/// The format's own limit; a damaged length would otherwise ask for any amount of memory.
constexpr std::uint64_t longest_header = 100'000'000;

/// Element types of the format, those that we compute with and those that may lie beside them.
struct StoredType {
  std::string_view name;
  Index bytes;
  std::optional<DType> dtype;
};
constexpr std::array<StoredType, 15> stored_types = {{
    {"F64", 8, DType::float64},
    {"F32", 4, DType::float32},
    {"BF16", 2, DType::bfloat16},
    {"F16", 2, {}},
    {"F8_E4M3", 1, {}},
    {"F8_E5M2", 1, {}},
    {"I64", 8, {}},
    {"I32", 4, {}},
    {"I16", 2, {}},
    {"I8", 1, {}},
    {"U64", 8, {}},
    {"U32", 4, {}},
    {"U16", 2, {}},
    {"U8", 1, {}},
    {"BOOL", 1, {}},
}};

/// a * b unless that does not fit; both are >= 0.
std::optional<Index> product(Index a, Index b) {
  Index result = 0;
  if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}

/// A member that must be a whole number from 0 up.
Index count_of(const json& value, const std::string& where) {
  const bool fits =
      value.is_number_unsigned() &&
      value.get<std::uint64_t>() <= static_cast<std::uint64_t>(std::numeric_limits<Index>::max());
  require<UsageError>(fits, "{}: {} is not a size", where, value.dump());
  return value.get<Index>();
}

/// Parses the header. JSON lets a name come twice and nlohmann then keeps the last: two tensors in one place,
/// unnoticed.
json parse_json(std::string_view text, const std::string& where) {
  std::set<std::string> names;
  std::string twice;
  const json::parser_callback_t watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::key && depth == 1 && !names.insert(parsed.get<std::string>()).second) {
      twice = parsed.get<std::string>();
    }
    return true;
  };
  json header;
  try {
    header = json::parse(text, watch);
  } catch (const json::exception& error) {
    fail<UsageError>("{}: the header is not JSON: {}", where, error.what());
  }
  require<UsageError>(header.is_object(), "{}: the header is not a JSON object", where);
  require<UsageError>(twice.empty(), "{}: the header names {} twice", where, twice);
  return header;
}

/// One entry of the header, checked by itself.
struct Entry {
  std::string name;
  const StoredType* type = nullptr;
  std::vector<Index> shape;
  Index begin = 0, end = 0;
};

Entry parse_entry(const std::string& name, const json& value, Index data_bytes, const std::string& file) {
  const std::string where = fmt::format("{}: tensor {}", file, name);
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    require<UsageError>(value.is_object() && value.contains(key), "{}: has no {}", where, key);
  }
  require<UsageError>(value["dtype"].is_string(), "{}: dtype is not a name", where);
  const auto dtype = value["dtype"].get<std::string>();
  Entry entry{name,
              std::find_if(stored_types.begin(), stored_types.end(),
                           [&](const StoredType& type) { return type.name == dtype; }),
              {}};
  require<UsageError>(entry.type != stored_types.end(), "{}: unknown dtype {}", where, dtype);

  std::optional<Index> bytes = entry.type->bytes;
  require<UsageError>(value["shape"].is_array(), "{}: shape is not a list", where);
  for (const json& dimension : value["shape"]) {
    entry.shape.push_back(count_of(dimension, where));
    bytes = bytes ? product(*bytes, entry.shape.back()) : bytes;
  }
  require<UsageError>(bytes.has_value(), "{}: shape {} is too large for any file", where,
                      value["shape"].dump());

  const json& offsets = value["data_offsets"];
  require<UsageError>(offsets.is_array() && offsets.size() == 2, "{}: data_offsets is not a pair", where);
  entry.begin = count_of(offsets[0], where);
  entry.end = count_of(offsets[1], where);
  require<UsageError>(entry.begin <= entry.end, "{}: data_offsets {} run backwards", where, offsets.dump());
  require<UsageError>(entry.end <= data_bytes,
                      "{}: ends at byte {} of the data, but the file has only {}; is it cut off?", where,
                      entry.end, data_bytes);
  require<UsageError>(entry.end - entry.begin == *bytes,
                      "{}: {} of shape {} take {} bytes, but data_offsets {} hold {}", where, dtype,
                      value["shape"].dump(), *bytes, offsets.dump(), entry.end - entry.begin);
  return entry;
}

/// Together the tensors must fill the data: what overlaps or is left out was meant to be something else.
void check_cover(std::vector<Entry>& entries, Index data_bytes, const std::string& where) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  Index end = 0;
  for (const Entry& entry : entries) {
    require<UsageError>(entry.begin >= end, "{}: tensor {} overlaps another at byte {} of the data", where,
                        entry.name, entry.begin);
    require<UsageError>(entry.begin == end, "{}: bytes {} to {} of the data belong to no tensor", where, end,
                        entry.begin);
    end = entry.end;
  }
  require<UsageError>(end == data_bytes, "{}: the header describes {} bytes of data, but the file has {}",
                      where, end, data_bytes);
}

}  // namespace

Index TensorInfo::elements() const {
  Index count = 1;
  for (const Index dimension : shape) count *= dimension;
  return count;
}

SafetensorsReader::SafetensorsReader(const std::string& path, const std::string& reader)
    : file_(path, reader) {
  const std::string where = fmt::format("{} {}", reader, path);
  const auto bytes = file_.bytes();
  std::uint64_t header_bytes = 0;
  require<UsageError>(bytes.size() >= sizeof header_bytes, "{}: {} bytes are too few for a safetensors file",
                      where, bytes.size());
  std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
  const std::size_t rest = bytes.size() - sizeof header_bytes;
  require<UsageError>(header_bytes <= longest_header, "{}: a header of {} bytes; this is no safetensors file",
                      where, header_bytes);
  require<UsageError>(header_bytes <= rest,
                      "{}: a header of {} bytes, but only {} follow; is the file cut off?", where,
                      header_bytes, rest);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + sizeof header_bytes,
                              header_bytes);
  require<UsageError>(text.starts_with('{'),
                      "{}: the header does not begin with {{; this is no safetensors file", where);
  data_begin_ = static_cast<Index>(sizeof header_bytes + header_bytes);
  parse(text, static_cast<Index>(rest - header_bytes), where);
}

void SafetensorsReader::parse(std::string_view text, Index data_bytes, const std::string& where) {
  const json header = parse_json(text, where);
  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      require<UsageError>(value.is_object(), "{}: __metadata__ is not a JSON object", where);
      for (const auto& [key, note] : value.items()) {
        require<UsageError>(note.is_string(), "{}: {} in __metadata__ is not a string", where, key);
        metadata_[key] = note.get<std::string>();
      }
    } else {
      entries.push_back(parse_entry(name, value, data_bytes, where));
    }
  }
  check_cover(entries, data_bytes, where);
  for (Entry& entry : entries) {
    if (entry.type->dtype) {
      tensors_[entry.name] = {entry.name, *entry.type->dtype, std::move(entry.shape)};
      offsets_[entry.name] = entry.begin;
    } else {
      unreadable_[entry.name] = entry.type->name;
    }
  }
}

const TensorInfo& SafetensorsReader::info(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found != tensors_.end()) return found->second;
  const auto other = unreadable_.find(name);
  if (other == unreadable_.end()) fail("{}: has no tensor {}", path(), name);
  fail("{}: tensor {} has type {}; only F64, F32 and BF16 can be read", path(), name, other->second);
}

std::span<const std::byte> SafetensorsReader::bytes(const std::string& name) const {
  const TensorInfo& tensor = info(name);
  return file_.bytes().subspan(static_cast<std::size_t>(data_begin_ + offsets_.at(name)),
                               static_cast<std::size_t>(tensor.bytes()));
}

std::vector<double> SafetensorsReader::values(const std::string& name, Index begin, Index count) const {
  const TensorInfo& tensor = info(name);
  const Index elements = tensor.elements();
  if (count == -1) count = elements - begin;
  require(begin >= 0 && count >= 0 && begin <= elements && count <= elements - begin,
          "{}: elements {} to {} of tensor {}, which has {}", path(), begin, begin + count, name, elements);
  const Index width = size_of(tensor.dtype);
  return decode_values(
      bytes(name).subspan(static_cast<std::size_t>(begin * width), static_cast<std::size_t>(count * width)),
      tensor.dtype);
}

}  // namespace escalera
