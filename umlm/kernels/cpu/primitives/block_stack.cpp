// All blocks of a decoder in one call from Python, and what tells whether the modules they were made of have changed.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "primitives/bind.h"
#include "primitives/blocks.h"

namespace umlm {
namespace {

namespace nb = nanobind;

struct Block {
  const AttentionOperation* attention;
  const FeedForwardOperation* feed_forward;
};

// All blocks as one operation. Pages are inputs that it writes into, unknown to MLX: whoever reads them later must
// depend on the result, or be computed in a later evaluation of the same stream.
class StackPrimitive : public CpuPrimitive {
 public:
  // inputs: x, positions, slots, then frequencies, keys and values of each block
  enum : int { kX, kPositions, kSlots, kFixed };

  StackPrimitive(mx::Stream stream, std::shared_ptr<const std::vector<Block>> blocks, std::shared_ptr<PageTable> table,
                 int64_t page_size, int k_bits, int v_bits)
      : CpuPrimitive(stream),
        blocks_(std::move(blocks)),
        table_(std::move(table)),
        page_size_(page_size),
        k_bits_(k_bits),
        v_bits_(v_bits) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    out.set_data(result_memory(out.nbytes()));
    auto steps = std::make_shared<std::vector<Steps>>();
    const PagesOfCall pages{inputs[kPositions], inputs[kSlots], table_, page_size_, k_bits_, v_bits_};
    for (size_t i = 0; i < blocks_->size(); ++i) {
      const mx::array *own = &inputs[kFixed + 3 * i], &keys = own[1], &values = own[2];
      if (!keys.flags().row_contiguous || !values.flags().row_contiguous) {
        throw std::runtime_error("pages must lie in row-major order");
      }
      const BlockCall call{inputs[kX], own[0], keys, values, pages, precision_};
      steps->push_back({(*blocks_)[i].attention->step(call), (*blocks_)[i].feed_forward->step(call)});
    }
    // the steps hold pointers: what they are of lives as long as the operation
    mx::cpu::get_command_encoder(stream()).dispatch(
        [steps, blocks = blocks_, inputs, x = RowMajor(inputs[kX]), bytes = out.nbytes(),
         result = out.data<uint8_t>()]() { run(*steps, x.data(), bytes, result); });
  }
  const char* name() const override { return "UmlmBlockStack"; }

 private:
  struct Steps {
    std::unique_ptr<AttentionStep> attention;
    std::unique_ptr<FeedForwardStep> feed_forward;
  };

  static void run(std::vector<Steps>& steps, const void* x, size_t bytes, uint8_t* out) {
    Scratch between(bytes);
    for (Steps& block : steps) {
      block.attention->run(x, between.data());
      block.feed_forward->run(between.data(), out);
      x = out;
    }
  }

  std::shared_ptr<const std::vector<Block>> blocks_;
  std::shared_ptr<PageTable> table_;
  int64_t page_size_;
  int k_bits_, v_bits_;
};

// Made once per decoder, of halves whose weights do not change.
class BlockStack {
 public:
  BlockStack(nb::list attention, nb::list feed_forward) : halves_(nb::make_tuple(attention, feed_forward)) {
    if (attention.size() != feed_forward.size()) throw std::invalid_argument("a block has two halves");
    auto blocks = std::make_shared<std::vector<Block>>();
    std::vector<mx::array> weights;
    for (size_t i = 0; i < attention.size(); ++i) {
      blocks->push_back({nb::cast<const AttentionOperation*>(attention[i]),
                         nb::cast<const FeedForwardOperation*>(feed_forward[i])});
      for (const auto* all : {&blocks->back().attention->weights(), &blocks->back().feed_forward->weights()}) {
        weights.insert(weights.end(), all->begin(), all->end());
      }
    }
    mx::eval(weights);
    blocks_ = std::move(blocks);
  }

  // inv_freqs, keys, values: one each per block; new rows are written into the arrays of keys and values themselves.
  mx::array operator()(const mx::array& x, const mx::array& positions, nb::list inv_freqs, nb::list keys,
                       nb::list values, const mx::array& slots, std::shared_ptr<PageTable> table, int64_t page_size,
                       int k_bits, int v_bits, mx::StreamOrDevice s) const {
    const size_t count = blocks_->size();
    if (count == 0 || inv_freqs.size() != count || keys.size() != count || values.size() != count) {
      throw std::invalid_argument("a stack of blocks takes frequencies, keys and values for each of them");
    }
    type_of(x.dtype());  // refuses others
    if (positions.dtype() != mx::int32 || slots.dtype() != mx::int32) {
      throw std::invalid_argument("a stack of blocks takes int32 positions and slots");
    }
    std::vector<mx::array> inputs = {x, positions, slots};
    for (size_t i = 0; i < count; ++i) {
      inputs.push_back(inv_freqs[i].is_none() ? positions : nb::cast<const mx::array&>(inv_freqs[i]));
      inputs.push_back(nb::cast<const mx::array&>(keys[i]));
      inputs.push_back(nb::cast<const mx::array&>(values[i]));
      table->check(x.shape(-2), std::min(inputs.rbegin()[0].shape(0), inputs.rbegin()[1].shape(0)), page_size);
    }
    auto primitive = std::make_shared<StackPrimitive>(mx::to_stream(s), blocks_, std::move(table), page_size, k_bits,
                                                      v_bits);
    return mx::array(x.shape(), x.dtype(), std::move(primitive), std::move(inputs));
  }

 private:
  nb::object halves_;  // owns what the blocks point to
  std::shared_ptr<const std::vector<Block>> blocks_;
};

// Whether dictionaries hold what they held. An array is the same while it is the same node of MLX's graph, so one that
// was written to in place has changed.
class Watch {
 public:
  explicit Watch(nb::list dicts) : dicts_(std::move(dicts)) {
    visit([&](PyObject* value) {
      values_.push_back({nb::borrow(value), array_id(value)});
      return true;
    });
  }

  bool unchanged() const {
    size_t next = 0;
    const bool same = visit([&](PyObject* value) {
      if (next == values_.size()) return false;
      const Value& known = values_[next++];
      return known.object.ptr() == value && (known.id == 0 || known.id == nb::inst_ptr<mx::array>(value)->id());
    });
    return same && next == values_.size();
  }

 private:
  struct Value {
    nb::object object;  // held, so that no other can take its place in memory
    std::uintptr_t id;  // of an array, else 0
  };

  static std::uintptr_t array_id(PyObject* value) {
    const nb::handle handle(value);
    return nb::isinstance<mx::array>(handle) ? nb::inst_ptr<mx::array>(handle)->id() : 0;
  }

  template <typename Visit>
  bool visit(Visit&& visitor) const {
    for (nb::handle dict : dicts_) {
      PyObject *key, *value;
      Py_ssize_t position = 0;
      while (PyDict_Next(dict.ptr(), &position, &key, &value)) {
        if (!visitor(value)) return false;
      }
    }
    return true;
  }

  nb::list dicts_;
  std::vector<Value> values_;
};

}  // namespace

void bind_block_stack(nanobind::module_& m) {
  using namespace nanobind::literals;
  nb::class_<BlockStack>(m, "BlockStack")
      .def(nb::init<nb::list, nb::list>(), "attention"_a, "feed_forward"_a)
      .def("__call__", &BlockStack::operator(), "x"_a, "positions"_a, "inv_freqs"_a, "keys"_a, "values"_a, "slots"_a,
           "table"_a, "page_size"_a, "k_bits"_a, "v_bits"_a, "stream"_a = nb::none());
  nb::class_<Watch>(m, "Watch").def(nb::init<nb::list>(), "dicts"_a).def("unchanged", &Watch::unchanged);
}

}  // namespace umlm
