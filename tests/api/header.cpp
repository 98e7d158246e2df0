// The C++ header alone, with every warning: it compiles or the build fails.
#include <fabricshm/cuda.h>
#include <fabricshm/data.hpp>
#include <fabricshm/fabricshm.hpp>
#include <fabricshm/optim.hpp>
#include <fabricshm/shard.hpp>
#include <fabricshm/symmetric.hpp>

static_assert(fabricshm::api::kDTypeOf<const double> == FABRICSHM_F64);
