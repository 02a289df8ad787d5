// Keeps the state of each unit's weights at the client, by partition: decides which reads to post
// and judges their results. client/session.h posts them. Takes no locks: its owner's mutex
// guards all of it.
//
// Keeps a unit while it has uses (Prefetch or Get without Release), or until the step's end, by
// residency; with step residency one that is frozen stays. Of one in NF4 stays what was read, and
// each use that finds no other converts it again. Frees a buffer once no read into it is in flight.
// One that is in files is asked of no server: it is converted out of them, piece by piece.
//
// Reads a partition's data, then its header. If that has another version than requested, reads both
// again, after a delay and a bounded number of times.
//
// Reads a partition at its reader. Where that is not its writer, goes over to the writer for this
// fetch once the reader is lost, or has had another version twice.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/buffer_pool.h"
#include "client/server_connection.h"
#include "client/unit_layout.h"
#include "core/transport/data_layout.h"
#include "core/transport/transport.h"

namespace shoal::client {

class FetchTable {
 public:
  // kKept: there in NF4, without a view.
  enum class State { kAbsent, kFetching, kConverting, kReady, kFailed, kDraining, kKept };

  struct Options {
    DType wire_type = DType::kF32;
    DType compute_type = DType::kF32;
    bool keep_for_step = false;  // residency
    int max_version_reads = 12;  // per partition, until it has the requested version
    absl::Duration version_retry_delay = absl::Milliseconds(1);  // doubles, up to 64 times this
  };

  // `view_buffers` are of the compute type; `wire_buffers` are what is not read as that, and null
  // where all is.
  // `headers` is registered memory, one per partition.
  FetchTable(const Options& options, const Layout* layout, BufferPool* view_buffers,
             BufferPool* wire_buffers, std::span<transport::PartitionHeader> headers);

  // Requests weights of `version` from now on, of frozen units 0, and ends all uses. Keeps resident
  // units of the version asked for if units are kept for the step.
  void Begin(int64_t version);

  State state(int unit) const { return fetch(unit).state; }
  const absl::Status& error(int unit) const { return fetch(unit).error; }
  bool resident(int unit) const;  // being fetched, or arrived
  bool quiet() const;             // nothing is being fetched
  // Starts fetching, or converting what is kept; false if no buffer is free.
  bool Start(int unit);
  void AddUse(int unit) { ++fetch(unit).uses; }
  void DropUse(int unit);
  int uses(int unit) const { return fetch(unit).uses; }
  std::byte* view(int unit) const { return fetch(unit).view; }
  std::byte* wire(int unit) { return fetch(unit).wire; }
  // Whose part of a unit that has arrived came last; -1: it is in files.
  int last_server(int unit) const { return fetch(unit).last_server; }

  // Collects the reads to post at that server now: the data of one unit's partitions, or headers of
  // data that arrived. They count as posted. If none are due, lowers *next to when one will be.
  void CollectReads(int server, const DataConnection& connection, absl::Time now,
                    std::vector<transport::ReadOperation>& operations, absl::Time* next);
  // For a transport whose reads complete on posting: collects the headers of the data just posted.
  void CollectHeaders(const DataConnection& connection,
                      std::span<const transport::ReadOperation> posted,
                      std::vector<transport::ReadOperation>& operations);
  // Undoes reads that could not be posted.
  void Unpost(std::span<const transport::ReadOperation> operations);

  struct Outcome {
    int convert = -1;        // a unit to convert: call Converted afterwards
    bool completed = false;  // some unit's state changed: wake waiters
    int64_t bytes = 0;       // of weights that arrived
    int server = -1;         // that they came from
    bool from_backup = false;
    bool reread = false;  // a partition had another version
    int instead = -1;     // the server at which it is read from now on, for another
    // Of a partition that had the version asked for: since its reads were posted.
    std::optional<absl::Duration> took;
  };
  Outcome OnRead(uint64_t operation, const absl::Status& status, absl::Time now);
  void Converted(int unit);
  // A unit that is kept, or in files, and is to be converted: call Converted afterwards, or
  // ConvertedPiece, which returns what is left of it to its place before all others. -1: none.
  int TakeKept();
  // Of one in files: its elements that are there.
  int64_t converted(int unit) const { return fetch(unit).converted; }
  void ConvertedPiece(int unit, int64_t count, const absl::Status& status);

  // A connection has ended, and all its reads with it: what is read there is read at the writer
  // until RegainServer. Whether that is something that is being fetched.
  bool LoseServer(int server);
  void RegainServer(int server) { lost_[static_cast<size_t>(server)] = false; }
  // Partitions that were read at their writer instead.
  int64_t fallbacks() const { return fallbacks_; }
  // Fails every unit that still needs a permanently lost server.
  void FailServer(int server, const absl::Status& status);
  // Servers yet to deliver: "server-1 and server-2".
  std::string Missing(int unit) const;
  // That is asked for.
  int64_t version(int unit) const { return layout_->unit(unit).frozen ? 0 : version_; }

 private:
  struct Unit {
    State state = State::kAbsent;
    int uses = 0;
    int outstanding = 0;  // reads in flight
    int missing = 0;      // partitions yet to arrive
    int64_t version = -1;
    int last_server = -1;
    int64_t converted = 0;  // elements, of one in files
    std::byte* view = nullptr;
    std::byte* wire = nullptr;  // destination of reads; the same as view unless types differ
    absl::Status error;
  };
  struct Partition {
    enum class State : uint8_t { kIdle, kWanted, kReading, kHere, kHeader, kValid };
    State state = State::kIdle;
    uint8_t outstanding = 0;
    bool failed = false;
    bool data_here = false;
    bool header_here = false;
    int server = -1;  // at which it is read
    int reads = 0;
    absl::Time posted;
    absl::Time not_before = absl::InfinitePast();
  };

  Unit& fetch(int unit) { return units_[static_cast<size_t>(unit)]; }
  const Unit& fetch(int unit) const { return units_[static_cast<size_t>(unit)]; }
  Partition& at(int partition) { return partitions_[static_cast<size_t>(partition)]; }
  const UnitPiece* PieceOf(int unit, int server) const;
  transport::ReadOperation DataRead(int partition, const DataConnection& connection,
                                    absl::Time now);
  transport::ReadOperation HeaderRead(int partition, const DataConnection& connection);
  void Judge(int partition, absl::Time now, Outcome& outcome);
  bool lost(int server) const { return lost_[static_cast<size_t>(server)]; }
  // Whether it can be read at the writer, and is not.
  bool HasOtherPlace(int partition) const;
  void ReadAtWriter(int partition);
  bool LacksPartOf(const UnitPiece& piece) const;
  void Drop(int unit);
  void GiveBackBuffers(int unit);
  bool in_nf4(int unit) const { return layout_->unit(unit).nf4_bytes > 0; }
  bool converts(int unit) const {
    return in_nf4(unit) || options_.wire_type != options_.compute_type;
  }
  // Whether what was read of it stays.
  bool KeepsWire(int unit) const;
  void Fail(int unit, absl::Status status);

  const Options options_;
  const Layout* const layout_;
  BufferPool* const view_buffers_;
  BufferPool* const wire_buffers_;
  const std::span<transport::PartitionHeader> headers_;
  int64_t version_ = 0;
  std::vector<Unit> units_;
  std::vector<Partition> partitions_;
  std::vector<bool> lost_;  // by server
  int64_t fallbacks_ = 0;
  std::vector<int> fetching_;  // units, in request order
  std::vector<int> kept_;      // units to convert that are here or in files, in request order
};

}  // namespace shoal::client
