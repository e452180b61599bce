// Quantized products in integers with AVX512 VNNI, for every layout whose values are integers of at most a byte times a
// scale. Needs quantized_vnni_few.h and quantized_vnni_panels.h; other layouts are left to quantized_generic.h.

namespace umlm::UNIT::vnni {

template <typename Policy, int C, int D>
void product_of(const Product& p, int64_t begin, int64_t end) {
  switch (p.x.rows) {
    case 1: return few_rows<Policy, C, D, 1>(p, begin, end);
    case 2: return few_rows<Policy, C, D, 2>(p, begin, end);
    default: return many_rows<Policy, C, D>(p, begin, end);
  }
}

template <typename Policy, int C>
void with_digits(const Product& p, int64_t begin, int64_t end) {
  if constexpr (C >= Policy::kLeastGroup && C <= Policy::kMostGroup) {
    switch (p.x.num_digits) {
      case 1: return product_of<Policy, C, 1>(p, begin, end);
      case 2: return product_of<Policy, C, 2>(p, begin, end);
      default: return product_of<Policy, C, 3>(p, begin, end);
    }
  }
}

inline void product(const QuantizedMatrix& w, const Operand& x, float* out, int64_t stride, int64_t begin,
                    int64_t end) {
  with_policy(w, [&](auto* policy) {
    using Policy = std::remove_pointer_t<decltype(policy)>;
    const Product p{w, x, Policy::codes(w.layout), w.columns / w.group, steps_of(w), out, stride};
    switch (w.group) {
      case 16: return with_digits<Policy, 16>(p, begin, end);
      case 32: return with_digits<Policy, 32>(p, begin, end);
      case 64: return with_digits<Policy, 64>(p, begin, end);
      default: return with_digits<Policy, 128>(p, begin, end);
    }
  });
}

inline int64_t prepared_bytes(const QuantizedMatrix& w) {
  return serves(w.layout) ? bytes_of_row(w) : UNIT::prepared_bytes(w);
}

inline Operand choose(const QuantizedMatrix& w, const void* source, Type type, int digits, int64_t rows,
                      void* scratch) {
  return serves(w.layout) ? operand(w, source, type, digits, rows, scratch)
                          : UNIT::operand(w, source, type, digits, rows, scratch);
}

inline void prepare_either(const QuantizedMatrix& w, const Operand& x, int64_t begin, int64_t end) {
  return x.digits != nullptr ? prepare(w, x, begin, end) : UNIT::prepare(w, x, begin, end);
}

inline void quantized_matmul(const QuantizedMatrix& w, const Operand& x, float* out, int64_t stride, int64_t begin,
                             int64_t end) {
  return x.digits != nullptr ? product(w, x, out, stride, begin, end)
                             : UNIT::quantized_matmul(w, x, out, stride, begin, end);
}

inline constexpr QuantizedKernels quantized_kernels = {
    prepared_bytes, choose, prepare_either, quantized_matmul, quantized_matmul_t, dequantize_row,
};

#undef UMLM_INLINE

}  // namespace umlm::UNIT::vnni
