/* The C header alone, as C11 with every warning: it compiles or the build fails. */
#include <fabricshm/fabricshm.h>
#include <fabricshm/shard.h>

_Static_assert(FABRICSHM_OK == 0, "success is 0");
_Static_assert(sizeof(fabricshm_session_options) == 40, "grow at the end; raise the minor version");
_Static_assert(sizeof(fabricshm_call) == 96, "grow at the end; raise the minor version");
_Static_assert(sizeof(fabricshm_step_info) == 64, "grow at the end; raise the minor version");
_Static_assert(sizeof(fabricshm_directive) == 3112, "grow at the end; raise the minor version");
_Static_assert(sizeof(fabricshm_quota) == 80, "grow at the end; raise the minor version");

_Static_assert(sizeof(fabricshm_shard_view) == 104, "fabricshm_shard_view");
