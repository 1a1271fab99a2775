// The safetensors format: named tensors in one file, which Python and Hugging Face's libraries read and
// write.
//
// A file is an 8-byte little-endian number n, n bytes of JSON, and the data. The JSON maps each name to
// dtype, shape and data_offsets [begin, end), counted from the end of the JSON; the tensors fill the data
// without overlap or hole. Source: https://huggingface.co/docs/safetensors
//
// defines: TensorInfo, SafetensorsReader, SafetensorsWriter, encode_values(), decode_values()
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "common/checkpoint/atomic_file.h"
#include "common/core/dtype.h"
#include "common/core/mapped_file.h"

namespace escalera {

/// What a file says about a tensor. The elements lie row-major.
struct TensorInfo {
  std::string name;              ///< unique in its file
  DType dtype = DType::float32;  ///< type of the elements
  std::vector<Index> shape;      ///< {} is a single number

  /// Product of the shape.
  Index elements() const;
  /// Size of the data.
  Index bytes() const { return elements() * size_of(dtype); }
};

/// Reads a file by mapping it: only what is asked for is paged in. Reading is const and may happen on several
/// threads.
class SafetensorsReader {
 public:
  /// Maps `path` and checks all of its header. `reader` opens messages: an option ("--init-from") or
  /// "safetensors file". Throws UsageError, naming file and reason, for a file that is missing, cut off,
  /// longer than its header says, or malformed: bad JSON, a name twice, an unknown dtype, a shape that does
  /// not fit its offsets, overlaps or holes.
  explicit SafetensorsReader(const std::string& path, const std::string& reader = "safetensors file");

  /// As it was given.
  const std::string& path() const { return file_.path(); }
  /// All tensors that can be read, by name. The format's integer and 8- and 16-bit types other than bfloat16
  /// are valid in a file but not among these.
  const std::map<std::string, TensorInfo>& tensors() const { return tensors_; }
  /// Whether tensors() has `name`.
  bool contains(const std::string& name) const { return tensors_.contains(name); }
  /// The file's free-form notes (`__metadata__`).
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  /// Throws Error, naming file and tensor, if there is none or if it has a type that cannot be read (naming
  /// that).
  const TensorInfo& info(const std::string& name) const;
  /// The data as it lies in the file; it lives as long as the reader. Files from elsewhere need not align it.
  std::span<const std::byte> bytes(const std::string& name) const;
  /// Elements [begin, begin + count) of the flattened tensor as double; all from `begin` if count is -1.
  std::vector<double> values(const std::string& name, Index begin = 0, Index count = -1) const;

 private:
  void parse(std::string_view json, Index data_bytes, const std::string& where);

  MappedFile file_;
  Index data_begin_ = 0;
  std::map<std::string, TensorInfo> tensors_;
  std::map<std::string, Index> offsets_;
  std::map<std::string, std::string> unreadable_;  // name -> dtype
  std::map<std::string, std::string> metadata_;
};

/// Writes a file tensor by tensor: all are declared first, so that the header can go ahead, and then the data
/// of one after the other, in any order, without ever holding two. The file appears under its name when
/// finish() returns (AtomicFile).
///
/// Data is laid out by element size, widest first, and then as declared: so each tensor is aligned to its
/// elements, without the holes that the format forbids. The header is padded with spaces to a multiple of 8
/// bytes.
class SafetensorsWriter {
 public:
  /// Throws Error, naming `path`, if it cannot be written, or if a name is declared twice, reserved, or no
  /// UTF-8. `metadata` is stored beside {"format": "pt"}, which transformers asks for.
  SafetensorsWriter(const std::string& path, std::vector<TensorInfo> tensors,
                    const std::map<std::string, std::string>& metadata = {});

  /// Writes the data of a declared tensor, in the element type that was declared. Throws Error if it was not
  /// declared, was written before, has another size, or the disk is full.
  void write(const std::string& name, std::span<const std::byte> bytes);
  /// The same, from doubles rounded to the declared type.
  void write_values(const std::string& name, std::span<const double> values);
  /// Completes the file. Throws Error, naming the path, if a tensor was not written or the disk is full.
  void finish();

 private:
  struct Place {
    TensorInfo info;
    Index offset = 0;  // from the beginning of the file
    bool written = false;
  };
  AtomicFile file_;
  std::map<std::string, Place> places_;
};

/// The bytes of `values` rounded to `dtype`, as a file or tensor holds them.
std::vector<std::byte> encode_values(std::span<const double> values, DType dtype);
/// The numbers in `bytes`, which may be unaligned. Throws Error if their size is no multiple of the
/// element's.
std::vector<double> decode_values(std::span<const std::byte> bytes, DType dtype);

}  // namespace escalera
