// Parameters and the flat buffers that hold them.
// defines: Slice, Initialization, Range, Parameter, InitialValues, Bucket
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/comm/communicator.h"
#include "common/core/tensor.h"

namespace escalera {

/// The part of one dimension of a parameter that this rank holds.
struct Slice {
  Index begin = 0;               ///< first element of the dimension held here
  Index size = 0;                ///< real elements of the dimension held here, without padding
  Index padded = 0;              ///< elements of the dimension in local storage, at least `size`
  Communicator* sum = nullptr;   ///< one extra group over which the gradient is summed beside its bucket's domain, or null
  bool counted = true;           ///< whether this rank counts the parameter in the gradient norm
};

/// How a parameter starts.
struct Initialization {
  /// normal: matrices, with mean 0; ones: the weights of norms.
  enum class Kind { normal, ones } kind = Kind::normal;  ///< distribution of the elements
  double deviation = 0.02;                               ///< standard deviation, for normal
};

/// The numbers from `begin` to before `end`.
struct Range {
  Index begin = 0;  ///< the first
  Index end = 0;    ///< behind the last; equal to begin if there are none
  /// How many there are.
  Index size() const { return end - begin; }
};

/// The one record that initialisation, gathering, clipping, checkpoints and export read.
struct Parameter {
  std::string name;  ///< Hugging Face's name
  /// The whole parameter, without padding; a vector has one row.
  /// @{
  Index rows = 0, columns = 0;
  /// @}
  /// The dimension of which a rank may hold a part.
  enum class Split { none, rows, columns } split = Split::none;  ///< which `slice` is about
  Slice slice;                    ///< of the split dimension; of the columns if there is none
  Initialization initialization;  ///< of the elements
  bool decay = true;              ///< weight decay: matrices yes, norms no
  Index offset = 0;               ///< first element in the bucket

  /// Shape and elements of the local matrix, with padding.
  /// @{
  Index local_rows() const { return split == Split::rows ? slice.padded : rows; }
  Index local_columns() const { return split == Split::columns ? slice.padded : columns; }
  Index local_size() const { return local_rows() * local_columns(); }
  /// @}
  /// Row-major position in the whole parameter of a local element, or -1 for padding.
  Index global_index(Index local) const;
  /// Calls `use` for each stretch of the local elements `part` that lies side by side in the whole parameter too: with its first
  /// local element, that one's global_index, and its length. Padding is left out.
  void for_each_stretch(Range part, const std::function<void(Index local, Index global, Index count)>& use) const;
};

/// The values of one parameter at the start: functions of (seed, name, position in the whole parameter), so that every
/// layout starts from the same numbers. Philox, drawn in float64.
class InitialValues {
 public:
  /// Copies what it needs.
  InitialValues(const Parameter& parameter, std::uint64_t seed);
  /// The element at a row-major position in the whole parameter; any order, any number of times.
  double operator()(Index global_index) const;

 private:
  Initialization initialization_;
  std::uint64_t key_;
};

/// One flat buffer of weights and one of gradients with one reduction domain: the ranks over which its gradients are
/// summed, a shard group times a replica group. The defaults describe one rank, which holds and updates everything.
struct Bucket {
  std::string name;                   ///< "model.layers.3"
  std::vector<Parameter> parameters;  ///< side by side, by offset
  Index size = 0;                     ///< elements of all parameters on this rank

  Communicator* shard = nullptr;     ///< ranks that share out this bucket in equal parts; null: nobody
  Communicator* replicas = nullptr;  ///< ranks that hold the same part; null: nobody
  Communicator* tied = nullptr;      ///< the other pipeline stage that holds the same tied matrix; null: nobody
  bool counted = true;               ///< false on the stage whose tied copy is not counted in the norm

  /// The elements that this rank's optimizer updates: [shard_begin, shard_begin + shard_size) of the flat buffer. The last
  /// shards may reach beyond `size`, into padding that belongs to no parameter.
  /// @{
  Index shard_begin = 0, shard_size = 0;
  /// @}
  /// What Model::allocate() makes room for: everything, or this rank's shard alone. What is not held is put into `weights` and
  /// `gradients` for as long as a visit of the unit needs it, by the one who shards.
  /// @{
  bool whole_weights = true, whole_gradients = true;
  /// @}
  /// Elements of the flat buffers: `size`, padded to as many equal parts as there are ranks to share it out.
  Index flat_size() const { return shard ? shard_size * shard->size() : size; }

  Tensor weights;         ///< [1, flat_size] in the model's type; empty between visits unless they are held whole
  Tensor gradients;       ///< [1, flat_size] wide; empty between visits unless they are held whole
  Tensor weight_shard;    ///< [1, shard_size] in the model's type; a view of weights where they are held whole
  Tensor gradient_shard;  ///< [1, shard_size] wide; a view of gradients where they are held whole
  Tensor master;          ///< [1, shard_size] wide; weight_shard itself unless the model computes in bfloat16

  /// The local elements of one of its parameters that lie in this rank's shard.
  Range in_shard(const Parameter& parameter) const;
  /// Adds a parameter behind the last one and returns its number.
  int add(Parameter parameter);
  /// Weights or gradients of one parameter as its local matrix, a view.
  /// @{
  Tensor weight(int number) const;
  Tensor gradient(int number) const;
  /// @}
  /// Parameters first to last, which must be split by rows and lie side by side, as one matrix [sum of rows, columns].
  /// @{
  Tensor merged_weight(int first, int last) const;
  Tensor merged_gradient(int first, int last) const;
  /// @}

 private:
  Tensor view(const Tensor& flat, int first, int last) const;
};

}  // namespace escalera
