#include "client/fetch_table.h"

#include <algorithm>

#include "core/base/check.h"
#include "core/base/status.h"
#include "core/base/testing/planted.h"
#include "core/transport/push_header.h"

namespace shoal::client {
namespace {

// Of a version at another server than the writer.
constexpr int kLooksAtReader = 2;

// An operation id: the partition, and whether it is its header.
uint64_t OperationId(int partition, bool header) {
  return static_cast<uint64_t>(partition) * 2 + (header ? 1 : 0);
}

}  // namespace

FetchTable::FetchTable(const Options& options, const Layout* layout, BufferPool* view_buffers,
                       BufferPool* wire_buffers, std::span<transport::PartitionHeader> headers)
    : options_(options),
      layout_(layout),
      view_buffers_(view_buffers),
      wire_buffers_(wire_buffers),
      headers_(headers),
      units_(layout->units.size()),
      partitions_(layout->partitions.size()),
      lost_(static_cast<size_t>(layout->servers), false) {
  SHOAL_CHECK(headers.size() == layout->partitions.size());
  fetching_.reserve(units_.size());
}

void FetchTable::Begin(int64_t version) {
  version_ = version;
  for (size_t i = 0; i < units_.size(); ++i) {
    Unit& unit = units_[i];
    unit.uses = 0;
    const bool same =
        unit.version == this->version(static_cast<int>(i)) || SHOAL_PLANTED("weights-kept");
    const bool keep = options_.keep_for_step && same && !in_nf4(static_cast<int>(i)) &&
                      (unit.state == State::kReady || unit.state == State::kConverting);
    if (unit.state != State::kAbsent && unit.state != State::kDraining && !keep) {
      Drop(static_cast<int>(i));
    }
  }
}

bool FetchTable::resident(int unit) const {
  const State state = fetch(unit).state;
  return state == State::kFetching || state == State::kConverting || state == State::kReady;
}

bool FetchTable::quiet() const {
  return std::ranges::all_of(units_, [](const Unit& unit) {
    return unit.outstanding == 0 && (unit.state == State::kAbsent || unit.state == State::kReady ||
                                     unit.state == State::kKept);
  });
}

bool FetchTable::Start(int index) {
  Unit& unit = fetch(index);
  if (unit.state != State::kAbsent && unit.state != State::kKept) {
    return false;  // still draining
  }
  unit.view = view_buffers_->Acquire(index);
  if (unit.view == nullptr) {
    return false;
  }
  unit.version = version(index);
  unit.error = absl::OkStatus();
  if (unit.state == State::kKept || layout_->unit(index).from_files) {
    unit.state = State::kConverting;
    unit.converted = 0;
    kept_.push_back(index);
    return true;
  }
  unit.wire = converts(index) ? wire_buffers_->Acquire(index) : unit.view;
  if (unit.wire == nullptr) {
    view_buffers_->Release(index, unit.view);
    unit.view = nullptr;
    return false;
  }
  unit.state = State::kFetching;
  const UnitLayout& layout = layout_->unit(index);
  unit.missing = static_cast<int>(layout.partitions.size());
  for (const int partition : layout.partitions) {
    at(partition) = {.state = Partition::State::kWanted, .server = layout_->reader_of(partition)};
    if (HasOtherPlace(partition) && lost(at(partition).server)) {
      ReadAtWriter(partition);
    }
  }
  fetching_.push_back(index);
  return true;
}

void FetchTable::DropUse(int index) {
  Unit& unit = fetch(index);
  SHOAL_CHECK(unit.uses > 0);
  if (--unit.uses == 0 && (!options_.keep_for_step || in_nf4(index))) {
    Drop(index);
  }
}

void FetchTable::Drop(int index) {
  Unit& unit = fetch(index);
  std::erase(fetching_, index);
  if (unit.outstanding > 0 || unit.state == State::kConverting) {
    unit.state = State::kDraining;
    return;
  }
  GiveBackBuffers(index);
}

bool FetchTable::KeepsWire(int index) const {
  const Unit& unit = fetch(index);
  return options_.keep_for_step && in_nf4(index) && unit.wire != nullptr && unit.missing == 0;
}

// It then is absent, or kept.
void FetchTable::GiveBackBuffers(int index) {
  Unit& unit = fetch(index);
  const bool keeps = KeepsWire(index);
  if (!keeps && unit.wire != nullptr && unit.wire != unit.view) {
    wire_buffers_->Release(index, unit.wire);
  }
  if (unit.view != nullptr) {
    view_buffers_->Release(index, unit.view);
  }
  unit.wire = keeps ? unit.wire : nullptr;
  unit.view = nullptr;
  unit.state = keeps ? State::kKept : State::kAbsent;
}

const UnitPiece* FetchTable::PieceOf(int unit, int server) const {
  for (const UnitPiece& piece : layout_->unit(unit).pieces) {
    if (piece.server == server) {
      return &piece;
    }
  }
  return nullptr;
}

transport::ReadOperation FetchTable::DataRead(int id, const DataConnection& connection,
                                              absl::Time now) {
  const plan::PartitionSpec& spec = layout_->partition(id);
  Partition& partition = at(id);
  partition.state = Partition::State::kReading;
  ++partition.outstanding;
  ++partition.reads;
  partition.posted = now;
  Unit& unit = fetch(spec.unit);
  ++unit.outstanding;
  const int64_t first =
      spec.nf4_bytes > 0 ? layout_->nf4.at(id).at : spec.offset * SizeOf(options_.wire_type);
  const DataConnection::Location& location = connection.locations[static_cast<size_t>(id)];
  const bool old = HasOtherPlace(id) && SHOAL_PLANTED("read-old-version-at-backup");
  const int64_t version = unit.version - (old ? 1 : 0);
  return {.id = OperationId(id, false),
          .region = location.weights_region,
          .offset = location.buffer[version & 1],
          .into = {unit.wire + first, static_cast<size_t>(spec.wire_bytes(options_.wire_type))}};
}

transport::ReadOperation FetchTable::HeaderRead(int id, const DataConnection& connection) {
  Partition& partition = at(id);
  if (partition.state == Partition::State::kHere) {
    partition.state = Partition::State::kHeader;
  }
  ++partition.outstanding;
  ++fetch(layout_->partition(id).unit).outstanding;
  const DataConnection::Location& location = connection.locations[static_cast<size_t>(id)];
  return {.id = OperationId(id, true),
          .region = location.headers_region,
          .offset = location.header,
          .into = std::as_writable_bytes(headers_.subspan(static_cast<size_t>(id), 1))};
}

void FetchTable::CollectReads(int server, const DataConnection& connection, absl::Time now,
                              std::vector<transport::ReadOperation>& operations, absl::Time* next) {
  operations.clear();
  for (const int index : fetching_) {
    const UnitPiece* piece = PieceOf(index, server);
    if (piece == nullptr) {
      continue;
    }
    bool reading = false;
    for (const int id : piece->partitions) {
      const Partition& partition = at(id);
      if (partition.server != server) {
        continue;
      }
      if (partition.state == Partition::State::kWanted && partition.outstanding == 0) {
        if (partition.not_before <= now) {
          operations.push_back(DataRead(id, connection, now));
        } else {
          *next = std::min(*next, partition.not_before);
        }
      }
      reading = reading || partition.state == Partition::State::kReading;
    }
    if (!operations.empty()) {
      return;
    }
    // Headers are read together, once the last data of this batch arrived.
    for (const int id : piece->partitions) {
      if (!reading && at(id).server == server && at(id).state == Partition::State::kHere) {
        operations.push_back(HeaderRead(id, connection));
      }
    }
    if (!operations.empty()) {
      return;
    }
  }
}

void FetchTable::CollectHeaders(const DataConnection& connection,
                                std::span<const transport::ReadOperation> posted,
                                std::vector<transport::ReadOperation>& operations) {
  operations.clear();
  for (const transport::ReadOperation& operation : posted) {
    if (operation.id % 2 == 0) {
      operations.push_back(HeaderRead(static_cast<int>(operation.id / 2), connection));
    }
  }
}

void FetchTable::Unpost(std::span<const transport::ReadOperation> operations) {
  for (const transport::ReadOperation& operation : operations) {
    const int id = static_cast<int>(operation.id / 2);
    Partition& partition = at(id);
    --partition.outstanding;
    const int unit = layout_->partition(id).unit;
    if (operation.id % 2 == 0) {
      --partition.reads;
      partition.state = Partition::State::kWanted;
    } else if (partition.state == Partition::State::kHeader) {
      partition.state = Partition::State::kHere;
    }
    if (--fetch(unit).outstanding == 0 && fetch(unit).state == State::kDraining) {
      GiveBackBuffers(unit);
    }
  }
}

FetchTable::Outcome FetchTable::OnRead(uint64_t operation, const absl::Status& status,
                                       absl::Time now) {
  Outcome outcome;
  const int id = static_cast<int>(operation / 2);
  const bool header = operation % 2 != 0;
  SHOAL_CHECK(static_cast<size_t>(id) < partitions_.size() && at(id).outstanding > 0);
  Partition& partition = at(id);
  const plan::PartitionSpec& spec = layout_->partition(id);
  Unit& unit = fetch(spec.unit);
  --partition.outstanding;
  --unit.outstanding;
  partition.failed = partition.failed || !status.ok();
  (header ? partition.header_here : partition.data_here) = true;
  if (!header && status.ok()) {
    outcome.bytes = spec.wire_bytes(options_.wire_type);
    outcome.server = partition.server;
    outcome.from_backup = partition.server != layout_->writer_of(id);
  }
  if (unit.state == State::kDraining) {
    if (unit.outstanding == 0) {
      GiveBackBuffers(spec.unit);
      outcome.completed = true;
    }
    return outcome;
  }
  if (partition.outstanding > 0 || unit.state != State::kFetching) {
    return outcome;
  }
  if (partition.failed) {  // the connection is closing: read again over the next one
    partition = {.state = Partition::State::kWanted,
                 .server = partition.server,
                 .reads = partition.reads - 1};
  } else if (partition.header_here) {
    Judge(id, now, outcome);
  } else {
    partition.state = Partition::State::kHere;
  }
  return outcome;
}

void FetchTable::Judge(int id, absl::Time now, Outcome& outcome) {
  Partition& partition = at(id);
  const plan::PartitionSpec& spec = layout_->partition(id);
  Unit& unit = fetch(spec.unit);
  const transport::PartitionHeader& header = headers_[static_cast<size_t>(id)];
  const auto buffer = static_cast<size_t>(unit.version & 1);
  if (header.version[buffer] == static_cast<uint64_t>(unit.version) &&
      header.sequence[buffer] % 2 == 0 && transport::AreZero(header.reserved)) {
    partition.state = Partition::State::kValid;
    outcome.took = now - partition.posted;
    if (--unit.missing == 0) {
      unit.last_server = partition.server;
      std::erase(fetching_, spec.unit);
      unit.state = unit.wire == unit.view ? State::kReady : State::kConverting;
      outcome.convert = unit.state == State::kConverting ? spec.unit : -1;
      outcome.completed = true;
    }
    return;
  }
  outcome.reread = true;
  if (partition.reads >= kLooksAtReader && HasOtherPlace(id) && !lost(layout_->writer_of(id))) {
    ReadAtWriter(id);
    outcome.instead = layout_->writer_of(id);
    return;
  }
  if (partition.reads >= options_.max_version_reads) {
    Fail(spec.unit,
         FailedPrecondition(
             "get {} (partition {}) from {}: wanted version {}, found version {}{} in {} reads",
             layout_->unit(spec.unit).name, id, ServerName(partition.server), unit.version,
             static_cast<int64_t>(header.version[buffer]),
             header.sequence[buffer] % 2 == 0 ? "" : " being written", partition.reads));
    outcome.completed = true;
    return;
  }
  const int doublings = std::min(partition.reads - 1, 6);
  partition = {.state = Partition::State::kWanted,
               .server = partition.server,
               .reads = partition.reads,
               .not_before = now + options_.version_retry_delay * (1 << doublings)};
}

void FetchTable::Converted(int index) {
  Unit& unit = fetch(index);
  if (unit.state == State::kDraining) {
    GiveBackBuffers(index);
    return;
  }
  if (!KeepsWire(index)) {
    wire_buffers_->Release(index, unit.wire);
    unit.wire = nullptr;
  }
  unit.state = State::kReady;
}

int FetchTable::TakeKept() {
  if (kept_.empty()) {
    return -1;
  }
  const int index = kept_.front();
  kept_.erase(kept_.begin());
  return index;
}

void FetchTable::ConvertedPiece(int index, int64_t count, const absl::Status& status) {
  Unit& unit = fetch(index);
  if (unit.state == State::kDraining) {
    GiveBackBuffers(index);
    return;
  }
  if (!status.ok()) {
    Fail(index, Annotate(status, fmt::format("get {}", layout_->unit(index).name)));
    return;
  }
  unit.converted += count;
  if (unit.converted < layout_->unit(index).count) {
    kept_.insert(kept_.begin(), index);
    return;
  }
  unit.state = State::kReady;
}

void FetchTable::Fail(int index, absl::Status status) {
  Unit& unit = fetch(index);
  std::erase(fetching_, index);
  unit.state = State::kFailed;
  unit.error = std::move(status);
}

bool FetchTable::HasOtherPlace(int id) const {
  return partitions_[static_cast<size_t>(id)].server != layout_->writer_of(id);
}

void FetchTable::ReadAtWriter(int id) {
  at(id) = {.state = Partition::State::kWanted, .server = layout_->writer_of(id)};
  ++fallbacks_;
}

bool FetchTable::LoseServer(int server) {
  lost_[static_cast<size_t>(server)] = true;
  bool any = false;
  for (const int index : fetching_) {
    const UnitPiece* piece = PieceOf(index, server);
    for (const int id : piece == nullptr ? std::vector<int>() : piece->partitions) {
      if (at(id).server == server && HasOtherPlace(id) &&
          at(id).state != Partition::State::kValid) {
        SHOAL_CHECK(at(id).outstanding == 0);
        ReadAtWriter(id);
        any = true;
      }
    }
  }
  return any;
}

// Whether some of it has not arrived that is read there.
bool FetchTable::LacksPartOf(const UnitPiece& piece) const {
  return std::ranges::any_of(piece.partitions, [&](int id) {
    const Partition& partition = partitions_[static_cast<size_t>(id)];
    return partition.server == piece.server && partition.state != Partition::State::kValid;
  });
}

void FetchTable::FailServer(int server, const absl::Status& status) {
  for (size_t i = 0; i < units_.size(); ++i) {
    const int index = static_cast<int>(i);
    const UnitPiece* piece = PieceOf(index, server);
    if (units_[i].state == State::kFetching && piece != nullptr && LacksPartOf(*piece)) {
      Fail(index, Annotate(status, fmt::format("get {}", layout_->unit(index).name)));
    }
  }
}

std::string FetchTable::Missing(int index) const {
  std::string names;
  for (const UnitPiece& piece : layout_->unit(index).pieces) {
    if (LacksPartOf(piece)) {
      names += (names.empty() ? "" : ", ") + ServerName(piece.server);
    }
  }
  return names;
}

}  // namespace shoal::client
