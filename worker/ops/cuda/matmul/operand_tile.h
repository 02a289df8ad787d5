// A block's tile of one operand in shared memory, and how it is copied there: device code of
// tensor_core_kernel.h.
//
// An operand has an outer dimension (rows of C for A, columns of C for B) and an inner one, which
// is summed over. A tile is kOuter x kInner elements in rows of 16-byte chunks; chunk c of row r
// lies in place c ^ (r % 8), so that the eight rows that LoadMatrix reads at once, and the eight
// chunks that copies write at once, are in different banks.
//
// Three layouts:
// - InnerMajor for operands stored with the inner dimension contiguous (X and W of X W^T);
// - OuterMajor for the others (both of dY^T X);
// - Unaligned, which takes any strides element by element and stores like InnerMajor.
//
// Every thread makes one of each per block, then copies its share of one tile after the other along
// the inner dimension. Elements outside the operand become zero, except those between an
// outer-major operand's columns and the next multiple of 8: they only reach rows and columns of C
// that do not exist.
#pragma once

#include "core/gpu/kernel/kernel.h"
#include "worker/backend/cuda/gpu_names.h"

namespace shoal::worker::cuda {

inline constexpr int kInner = 64;
inline constexpr int kChunkElements = 8;
inline constexpr int kChunkBytes = 16;

// Strides in elements of 16 bits.
struct Operand {
  const uint16_t* data;
  int64_t outer_stride;
  int64_t inner_stride;
};

template <int kRows, int kColumns, int kThreads>
class ChunkCopier {
 public:
  static constexpr int kRowChunks = kColumns / kChunkElements;
  static constexpr int kRowsAtOnce = kThreads / kRowChunks;
  // A thread then has the same place in every eighth row, whatever the swizzle.
  static_assert(kThreads % kRowChunks == 0 && kRowsAtOnce % 8 == 0 && kRows % kRowsAtOnce == 0);

  SHOAL_DEVICE ChunkCopier(const uint16_t* corner, int64_t row_stride)
      : row_(ThreadIndex() / kRowChunks),
        column_(ThreadIndex() % kRowChunks * kChunkElements),
        from_(corner + row_ * row_stride + column_),
        step_(kRowsAtOnce * row_stride) {}

  // rows, columns: how many of the tile are inside the operand. kCut: the last chunk of a row is
  // cut off where the columns end; otherwise all of it is copied.
  template <bool kCut>
  SHOAL_DEVICE void Copy(char* tile, int rows, int columns) const {
    const int chunk = column_ / kChunkElements;
    char* to = tile + (row_ * kRowChunks + (chunk ^ (row_ & 7))) * kChunkBytes;
    const int inside = columns - column_;
    const int bytes = inside <= 0 ? 0 : inside < kChunkElements ? inside * 2 : kChunkBytes;
#pragma unroll
    for (int i = 0; i < kRows / kRowsAtOnce; ++i) {
      const bool row_inside = row_ + i * kRowsAtOnce < rows;
      if constexpr (kCut) {
        CopyAsyncUpTo16(to + i * kThreads * kChunkBytes, from_ + i * step_, row_inside ? bytes : 0);
      } else {
        CopyAsync16(to + i * kThreads * kChunkBytes, from_ + i * step_, inside > 0 && row_inside);
      }
    }
  }
  SHOAL_DEVICE void AdvanceColumns() { from_ += kColumns; }
  SHOAL_DEVICE void AdvanceRows() { from_ += kRows / kRowsAtOnce * step_; }

 private:
  int row_;
  int column_;
  const uint16_t* from_;
  int64_t step_;
};

template <int kRowChunks>
SHOAL_DEVICE const char* ChunkAt(const char* tile, int row, int chunk) {
  return tile + (row * kRowChunks + (chunk ^ (LaneIndex() & 7))) * kChunkBytes;
}

// Fragments for MultiplyAdd, of rows and columns in tiles as InnerMajor and OuterMajor store them.
// A: 16 outer by 16 inner. B: 16 inner by twice 8 outer, two registers each.
template <int kOuter>
struct InnerMajorFragments {
  static constexpr int kRowChunks = kInner / kChunkElements;
  SHOAL_DEVICE static void LoadA(uint32_t (&to)[4], const char* tile, int outer, int inner) {
    const int lane = LaneIndex();
    LoadMatrix(to,
               ChunkAt<kRowChunks>(tile, outer + lane % 16, inner / kChunkElements + lane / 16));
  }
  SHOAL_DEVICE static void LoadB(uint32_t (&to)[4], const char* tile, int outer, int inner) {
    const int lane = LaneIndex();
    LoadMatrix(to, ChunkAt<kRowChunks>(tile, outer + lane / 16 * 8 + lane % 8,
                                       inner / kChunkElements + lane / 8 % 2));
  }
};
template <int kOuter>
struct OuterMajorFragments {
  static constexpr int kRowChunks = kOuter / kChunkElements;
  SHOAL_DEVICE static void LoadA(uint32_t (&to)[4], const char* tile, int outer, int inner) {
    const int lane = LaneIndex();
    LoadMatrixTransposed(to, ChunkAt<kRowChunks>(tile, inner + lane / 16 * 8 + lane % 8,
                                                 outer / kChunkElements + lane / 8 % 2));
  }
  SHOAL_DEVICE static void LoadB(uint32_t (&to)[4], const char* tile, int outer, int inner) {
    const int lane = LaneIndex();
    LoadMatrixTransposed(
        to, ChunkAt<kRowChunks>(tile, inner + lane % 16, outer / kChunkElements + lane / 16));
  }
};

// `outer` and `inner`: the first tile's corner; `outers`: the operand's outer size. kCut: the inner
// dimension need not be a multiple of 8.
template <int kOuter, int kThreads, bool kCut>
class InnerMajor : public InnerMajorFragments<kOuter> {
 public:
  SHOAL_DEVICE InnerMajor(const Operand& operand, int outer, int inner, int outers)
      : copier_(operand.data + outer * operand.outer_stride + inner, operand.outer_stride),
        outers_(outers - outer) {}
  // Copies the next tile, of which `inners` are inside the operand.
  SHOAL_DEVICE void CopyNext(char* tile, int inners) {
    copier_.template Copy<kCut>(tile, outers_, inners);
    copier_.AdvanceColumns();
  }

 private:
  ChunkCopier<kOuter, kInner, kThreads> copier_;
  int outers_;
};

template <int kOuter, int kThreads>
class OuterMajor : public OuterMajorFragments<kOuter> {
 public:
  SHOAL_DEVICE OuterMajor(const Operand& operand, int outer, int inner, int outers)
      : copier_(operand.data + inner * operand.inner_stride + outer, operand.inner_stride),
        outers_(outers - outer) {}
  SHOAL_DEVICE void CopyNext(char* tile, int inners) {
    copier_.template Copy<false>(tile, inners, outers_);
    copier_.AdvanceRows();
  }

 private:
  ChunkCopier<kInner, kOuter, kThreads> copier_;
  int outers_;
};

template <int kOuter, int kThreads>
class Unaligned : public InnerMajorFragments<kOuter> {
 public:
  SHOAL_DEVICE Unaligned(const Operand& operand, int outer, int inner, int outers)
      : operand_(operand),
        from_(operand.data + outer * operand.outer_stride + inner * operand.inner_stride),
        outers_(outers - outer) {}
  SHOAL_DEVICE void CopyNext(char* tile, int inners) {
    constexpr int kRowChunks = kInner / kChunkElements;
    for (int at = ThreadIndex(); at < kOuter * kRowChunks; at += kThreads) {
      // Neighbouring threads take neighbouring elements, whichever dimension is contiguous.
      const bool along_inner = operand_.inner_stride == 1;
      const int row = along_inner ? at / kRowChunks : at % kOuter;
      const int chunk = along_inner ? at % kRowChunks : at / kOuter;
      const uint16_t* from =
          from_ + row * operand_.outer_stride + chunk * kChunkElements * operand_.inner_stride;
      const int inside = row < outers_ ? inners - chunk * kChunkElements : 0;
      Bits128 bits = {};
#pragma unroll
      for (int i = 0; i < kChunkElements; ++i) {
        const uint32_t element = i < inside ? from[i * operand_.inner_stride] : 0;
        bits.word[i / 2] |= element << (i % 2 * 16);
      }
      char* to = tile + (row * kRowChunks + (chunk ^ (row & 7))) * kChunkBytes;
      *reinterpret_cast<Bits128*>(to) = bits;
    }
    from_ += kInner * operand_.inner_stride;
  }

 private:
  Operand operand_;
  const uint16_t* from_;
  int outers_;
};

}  // namespace shoal::worker::cuda
