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

class BlockStack {
 public:
  BlockStack(nb::list attention, nb::list feed_forward) : halves_(nb::make_tuple(attention, feed_forward)) {
    if (attention.size() != feed_forward.size()) throw std::invalid_argument("a block has two halves");
    for (nb::handle half : attention) attention_.push_back(nb::cast<const AttentionOperation*>(half));
    for (nb::handle half : feed_forward) feed_forward_.push_back(nb::cast<const FeedForwardOperation*>(half));
  }

  // inv_freqs, keys, values: one each per block; those of keys and values become the written pages.
  mx::array operator()(const mx::array& x, const mx::array& positions, nb::list inv_freqs, nb::list keys,
                       nb::list values, const mx::array& slots, std::shared_ptr<PageTable> table, int64_t page_size,
                       int k_bits, int v_bits, mx::StreamOrDevice s) const {
    const size_t count = attention_.size();
    if (inv_freqs.size() != count || keys.size() != count || values.size() != count) {
      throw std::invalid_argument("a stack of blocks takes frequencies, keys and values for each of them");
    }
    const mx::Stream stream = mx::to_stream(s);
    const PagesOfCall call{positions, slots, std::move(table), page_size, k_bits, v_bits};
    mx::array y = x;
    for (size_t i = 0; i < count; ++i) {
      std::optional<mx::array> inv_freq;
      if (!inv_freqs[i].is_none()) inv_freq = nb::cast<mx::array>(inv_freqs[i]);
      y = attention_[i]->apply(y, inv_freq, nb::cast<mx::array&>(keys[i]), nb::cast<mx::array&>(values[i]), call,
                               stream);
      y = feed_forward_[i]->apply(y, stream);
    }
    return y;
  }

 private:
  nb::object halves_;  // owns what the pointers are of
  std::vector<const AttentionOperation*> attention_;
  std::vector<const FeedForwardOperation*> feed_forward_;
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
      return known.object.ptr() == value && (known.id == 0 || known.id == array_id(value));
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
