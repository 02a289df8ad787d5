// AES-128-GCM, HKDF with SHA-256 and random bytes, all by OpenSSL.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "openssl/types.h"

namespace shoal::transport {

inline constexpr size_t kAeadKeyBytes = 16;
inline constexpr size_t kAeadNonceBytes = 12;
inline constexpr size_t kAeadTagBytes = 16;

// One key, whose context is kept from message to message. A nonce may seal one message alone. For
// one thread at a time.
class Aead {
 public:
  using Nonce = std::array<unsigned char, kAeadNonceBytes>;

  explicit Aead(std::string_view key);
  // Encrypts the parts, one after the other, into `sealed`, which has their size and kAeadTagBytes
  // more. The tag vouches for `associated` too.
  void Seal(const Nonce& nonce, std::span<const std::byte> associated, std::span<const iovec> parts,
            std::span<std::byte> sealed);
  // Decrypts in place all but the tag at the end. False if any of it is not what was sealed; then
  // nothing of it may be used.
  bool Open(const Nonce& nonce, std::span<const std::byte> associated, std::span<std::byte> sealed);

 private:
  struct FreeContext {
    void operator()(EVP_CIPHER_CTX* context) const;
  };
  void Begin(const Nonce& nonce, std::span<const std::byte> associated, bool seal);

  std::unique_ptr<EVP_CIPHER_CTX, FreeContext> context_;
};

// RFC 5869.
std::string Hkdf(std::string_view secret, std::string_view salt, std::string_view info,
                 size_t bytes);

// From OpenSSL's generator, which the kernel seeds.
std::string RandomSecret(size_t bytes);

}  // namespace shoal::transport
