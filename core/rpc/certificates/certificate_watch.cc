#include "core/rpc/certificates/certificate_watch.h"

#include "core/base/clock.h"
#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/base/threads/steady_await.h"

namespace shoal::rpc {

absl::StatusOr<std::shared_ptr<CertificateWatch>> CertificateWatch::Start(const Options& options,
                                                                          Metrics* metrics) {
  SHOAL_ASSIGN_OR_RETURN(Certificates first,
                         ReadCertificates(options.paths, options.role, options.domain, WallTime()));
  return std::shared_ptr<CertificateWatch>(
      new CertificateWatch(options, metrics, std::move(first)));
}

CertificateWatch::CertificateWatch(Options options, Metrics* metrics, Certificates first)
    : options_(std::move(options)),
      metrics_(metrics),
      identity_(first.own.identity),
      current_(std::move(first)) {
  CountReload("success", 0);
  CountReload("failure", 0);
  Tell(current_);
  thread_ = std::thread([this] { Watch(); });
}

CertificateWatch::~CertificateWatch() { Stop(); }

void CertificateWatch::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) {
    thread_.join();
  }
}

void CertificateWatch::Watch() {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (AwaitFor(&mutex_, absl::Condition(&stopping_), options_.interval)) {
        return;
      }
    }
    Look();
  }
}

void CertificateWatch::Look() {
  auto read = ReadCertificates(options_.paths, options_.role, options_.domain, WallTime());
  const std::string failure(Message(read.status()));
  if (!read.ok()) {
    // Files may be replaced while they are read: what is wrong twice is wrong.
    if (failure == failure_ && failure != told_) {
      LogWarning("{}; what was read before stays in use", failure);
      CountReload("failure");
      told_ = failure;
    }
    failure_ = failure;
    return;
  }
  failure_.clear();
  Tell(*read);
  absl::MutexLock lock(&mutex_);
  if (read->certificate != current_.certificate || read->ca != current_.ca || !told_.empty()) {
    LogInfo("has new certificates: {}, {}", options_.paths.certificate, options_.paths.ca);
    CountReload("success");
    told_.clear();
  }
  current_ = *std::move(read);
}

void CertificateWatch::CountReload(const char* result, double times) {
  if (metrics_ != nullptr) {
    metrics_
        ->counter("shoal_tls_reloads_total",
                  "Times that the files held something new, by whether it was good and is used.",
                  {{"result", result}})
        .Increment(times);
  }
}

void CertificateWatch::Tell(const Certificates& read) {
  const auto gauge = [this](const char* kind, absl::Time ends) {
    if (metrics_ != nullptr) {
      metrics_
          ->gauge(
              "shoal_tls_certificate_expiry_timestamp_seconds",
              "When the certificate that this process shows, or the CA that it stands on, ends.",
              {{"kind", kind}})
          .Set(absl::ToDoubleSeconds(ends - absl::UnixEpoch()));
    }
  };
  gauge("identity", read.own.ends);
  gauge("ca", read.own.ca_ends);
  const absl::Time now = WallTime();
  if (EndsSoon(read.own.begins, read.own.ends, now) && told_end_ != read.own.ends) {
    LogWarning("{} ends in {}: put a new certificate in its place", options_.paths.certificate,
               absl::FormatDuration(absl::Trunc(read.own.ends - now, absl::Seconds(1))));
    told_end_ = read.own.ends;
  }
}

absl::StatusOr<Identity> CertificateWatch::CheckPeer(std::string_view certificate,
                                                     std::string_view chain, Side side) const {
  std::shared_ptr<const TrustedCas> cas;
  {
    absl::MutexLock lock(&mutex_);
    cas = current_.cas;
  }
  SHOAL_ASSIGN_OR_RETURN(const Certified peer, cas->Check(certificate, chain, side, WallTime()));
  if (peer.identity.domain != identity_.domain ||
      peer.identity.name_space != identity_.name_space) {
    const bool domain = peer.identity.domain != identity_.domain;
    return Unauthenticated("{} is not of {} {}, as this process is", UriOf(peer.identity),
                           domain ? "domain" : "namespace",
                           domain ? identity_.domain : identity_.name_space);
  }
  return peer.identity;
}

bool EndsSoon(absl::Time begins, absl::Time ends, absl::Time now) {
  return ends - now < (ends - begins) / 4;
}

}  // namespace shoal::rpc
