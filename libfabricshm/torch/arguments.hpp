// Checks of what torch.distributed passes in.

#pragma once

#include <ATen/ATen.h>

#include <string>

namespace fabricshm::torch_backend {

/// What c10d's assert functions call with their error message: raises it with the operation's name.
class Refuse {
  public:
    explicit Refuse(const char* operation) : operation_(operation) {}
    void operator()(const std::string& error_message) const {
        TORCH_CHECK(false, "ProcessGroupFabricshm::", operation_, ": ", error_message);
    }

  private:
    const char* operation_;
};

}  // namespace fabricshm::torch_backend
