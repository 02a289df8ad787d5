#include "core/rpc/method.h"

#include "core/base/check.h"
#include "fmt/format.h"

namespace shoal::rpc {

const google::protobuf::MethodDescriptor& MethodTaking(
    const google::protobuf::Descriptor& request) {
  const google::protobuf::FileDescriptor& file = *request.file();
  const google::protobuf::MethodDescriptor* found = nullptr;
  for (int s = 0; s < file.service_count(); ++s) {
    for (int m = 0; m < file.service(s)->method_count(); ++m) {
      const google::protobuf::MethodDescriptor* method = file.service(s)->method(m);
      found = method->input_type() == &request ? method : found;
    }
  }
  SHOAL_CHECK(found != nullptr);
  return *found;
}

std::string MethodPath(const google::protobuf::MethodDescriptor& method) {
  return fmt::format("/{}/{}", method.service()->full_name(), method.name());
}

}  // namespace shoal::rpc
