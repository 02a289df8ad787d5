// OpenSSL's objects, freed when their owners go.
#pragma once

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>

namespace shoal::rpc {

template <auto kFree>
struct FreeBy {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using Bio = std::unique_ptr<BIO, FreeBy<BIO_free_all>>;
using Key = std::unique_ptr<EVP_PKEY, FreeBy<EVP_PKEY_free>>;
using X509Ptr = std::unique_ptr<X509, FreeBy<X509_free>>;

// The reason of this thread's last error, whose queue it empties.
inline const char* OpensslError() {
  const char* reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return reason == nullptr ? "unknown error" : reason;
}

}  // namespace shoal::rpc
