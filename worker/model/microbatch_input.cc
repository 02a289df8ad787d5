#include "worker/model/microbatch_input.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/data/token_file.h"
#include "core/model/adapters.h"
#include "core/plan/memory/activation_bytes.h"

namespace shoal::worker {
namespace {

// Longer than anything takes for which copies wait on a stream.
constexpr absl::Duration kLoadTimeout = absl::Minutes(15);

}  // namespace

absl::StatusOr<MicrobatchInput> MicrobatchInput::Create(const PackedBatch& batch,
                                                        int64_t vocabulary) {
  SHOAL_RETURN_IF_ERROR(Validate(batch, vocabulary));
  MicrobatchInput input;
  input.host_.tokens = batch.tokens;
  input.cu_seqlens_ = batch.cu_seqlens;
  for (size_t t = 0; t < batch.labels.size(); ++t) {
    if (batch.labels[t] != formats::kIgnoredLabel) {
      input.host_.target_rows.push_back(static_cast<int32_t>(t));
      input.host_.target_labels.push_back(batch.labels[t]);
      input.host_.target_weights.push_back(batch.weights.empty() ? 1.0f : batch.weights[t]);
    }
  }
  if (batch.preference.has_value()) {
    input.pairs_ = std::make_unique<BatchPairs>(batch);
  }
  input.host_.positions = Positions(batch);
  input.longest_ = 1 + *std::ranges::max_element(input.host_.positions);
  const auto rows = static_cast<size_t>(plan::MicrobatchRows(batch.token_count()));
  input.host_.positions.resize(rows, 0);
  if (batch.dropout.has_value()) {
    input.dropout_ = {.probability = batch.dropout->probability,
                      .seed = batch.dropout->seed,
                      .step = static_cast<uint32_t>(batch.dropout->step)};
    input.dropout_rows_ = DropoutRows(batch);
    input.dropout_rows_.resize(rows);
  }
  return input;
}

void MicrobatchInput::Leave(Host host) {
  static absl::Mutex mutex;
  static auto* const left = new std::vector<Host>();
  absl::MutexLock lock(&mutex);
  left->push_back(std::move(host));
}

MicrobatchInput::~MicrobatchInput() {
  if (loaded_ == nullptr || loaded_->WaitDone(kLoadTimeout)) {
    return;
  }
  LogWarning("inputs of a microbatch: not copied to the device within {}",
             absl::FormatDuration(kLoadTimeout));
  Leave(std::move(host_));
}

MicrobatchInput::Memory MicrobatchInput::Memory::Carve(Carver& carver, int64_t rows,
                                                       int64_t targets) {
  Memory m;
  m.tokens = carver.TakeArray<int32_t>(rows);
  m.positions = carver.TakeArray<int32_t>(rows);
  m.target_rows = carver.TakeArray<int32_t>(targets);
  m.target_labels = carver.TakeArray<int32_t>(targets);
  m.target_weights = carver.TakeArray<float>(targets);
  m.loss_sum = carver.TakeArray<double>(1);
  m.log_probabilities = carver.TakeArray<float>(targets);
  return m;
}

void MicrobatchInput::Carve(Carver& carver) {
  memory_ = Memory::Carve(carver, rows(), target_count());
}

void MicrobatchInput::CarveLargest(Carver& carver, int64_t tokens) {
  Memory::Carve(carver, plan::MicrobatchRows(tokens), tokens);
}

void MicrobatchInput::Load(Stream& stream) {
  constexpr int64_t kBytes = sizeof(int32_t);
  static_assert(sizeof(float) == kBytes);
  stream.Copy(memory_.tokens, host_.tokens.data(), tokens() * kBytes);
  stream.Copy(memory_.positions, host_.positions.data(), rows() * kBytes);
  stream.Copy(memory_.target_rows, host_.target_rows.data(), target_count() * kBytes);
  stream.Copy(memory_.target_labels, host_.target_labels.data(), target_count() * kBytes);
  stream.Copy(memory_.target_weights, host_.target_weights.data(), target_count() * kBytes);
  stream.Zero(memory_.loss_sum, sizeof(double));
  loaded_ = stream.Record();
}

SequenceContext MicrobatchInput::sequences(const RotaryTables& rotary, int unit) const {
  return {.cu_seqlens = cu_seqlens_, .rotation = rotary.of(unit - 1).At(memory_.positions)};
}

DropoutMask MicrobatchInput::dropout(int unit) const {
  DropoutMask mask = dropout_;
  mask.matrix = static_cast<uint32_t>((unit - 1) * plan::kProducts);
  mask.rows = dropout_rows_;
  return mask;
}

absl::Status MicrobatchInput::ComparePairs(Stream& stream) const {
  const int64_t bytes = target_count() * static_cast<int64_t>(sizeof(float));
  std::vector<float> log_probabilities(static_cast<size_t>(target_count()));
  stream.Copy(log_probabilities.data(), memory_.log_probabilities, bytes);
  SHOAL_RETURN_IF_ERROR(stream.Synchronize());
  pairs_->Compare(log_probabilities);
  stream.Copy(memory_.target_weights, pairs_->weights().data(), bytes);
  return stream.Synchronize();
}

MicrobatchResult MicrobatchInput::ResultOf(double loss) const {
  MicrobatchResult result = {.loss_sum = loss, .targets = target_count(), .tokens = tokens()};
  if (pairs_ != nullptr) {
    result.loss_sum = pairs_->loss_sum();
    result.log_probabilities = pairs_->sums();
  }
  return result;
}

Targets MicrobatchInput::targets() const {
  return {.host_rows = host_.target_rows,
          .rows = memory_.target_rows,
          .labels = memory_.target_labels,
          .weights = memory_.target_weights};
}

}  // namespace shoal::worker
