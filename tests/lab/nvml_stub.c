/* A stand-in for libnvidia-ml.so.1 that answers from a text file, so that the real nvidia-ml-py reads it.
 *
 * The file is $DFLASHCTL_LAB_GPUS or /var/lib/dflashctl-lab/gpus, and it is read on every call:
 *
 *   gpu INDEX,UUID,NAME,USED_MIB,TOTAL_MIB,UTIL_PCT,POWER_W,TEMP_C,PID:MIB PID:MIB ...
 *   health INDEX,RECOVERY_ACTION,UNCORRECTED_ECC,REMAP_PENDING,REMAP_FAILED
 *   hide-processes 1      no process is reported, as in a container whose pid namespace hides them
 *   hang SECONDS          every call about a device blocks that long; only SIGKILL ends it sooner
 *   lost INDEX            that GPU answers NVML_ERROR_GPU_IS_LOST (15)
 *   init-error CODE       nvmlInit fails with CODE, for example 18 (driver/library version mismatch)
 *   driver VERSION        what nvmlSystemGetDriverVersion answers
 *
 * A numeric field of "-" answers NVML_ERROR_NOT_SUPPORTED (3). The pids are the host's, as real NVML reports
 * them inside a container. Built with -DNVML_OLD the library lacks the symbols that older drivers lack.
 */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, LOST = 15, UNKNOWN = 999 };
enum { MAX_GPUS = 32, MAX_PROCESSES = 64 };
#define MIB (1024ULL * 1024ULL)

typedef int nvmlReturn_t;
typedef void *nvmlDevice_t;

typedef struct {
    int index, is_lost, num_processes, recovery, ecc, is_pending, has_failed;
    char uuid[96], name[96];
    double used_mib, total_mib, util_pct, power_w, temp_c; /* -1: not supported */
    unsigned int pids[MAX_PROCESSES];
    double pid_mib[MAX_PROCESSES];
} gpu_t;

typedef struct {
    gpu_t gpus[MAX_GPUS];
    int num_gpus, hide_processes, init_error;
    double hang_s;
    char driver[80];
} state_t;

static int initialized;

static double number(const char *field) { return field[0] == '-' ? -1 : atof(field); }

static void read_gpu(gpu_t *gpu, char *line) {
    char *fields[9] = {"", "", "", "", "", "", "", "", ""};
    for (int i = 0; i < 9 && line != NULL; i++) fields[i] = strsep(&line, ",");
    memset(gpu, 0, sizeof *gpu);
    gpu->index = atoi(fields[0]);
    snprintf(gpu->uuid, sizeof gpu->uuid, "%s", fields[1]);
    snprintf(gpu->name, sizeof gpu->name, "%s", fields[2]);
    gpu->used_mib = number(fields[3]);
    gpu->total_mib = number(fields[4]);
    gpu->util_pct = number(fields[5]);
    gpu->power_w = number(fields[6]);
    gpu->temp_c = number(fields[7]);
    char *rest = fields[8], *item;
    while (rest != NULL && (item = strsep(&rest, " ")) != NULL) {
        unsigned int pid;
        double mib;
        if (gpu->num_processes < MAX_PROCESSES && sscanf(item, "%u:%lf", &pid, &mib) == 2) {
            gpu->pids[gpu->num_processes] = pid;
            gpu->pid_mib[gpu->num_processes++] = mib;
        }
    }
}

static void read_state(state_t *state) {
    memset(state, 0, sizeof *state);
    snprintf(state->driver, sizeof state->driver, "570.00.00");
    const char *path = getenv("DFLASHCTL_LAB_GPUS");
    FILE *file = fopen(path != NULL ? path : "/var/lib/dflashctl-lab/gpus", "re");
    if (file == NULL) return;
    char line[4096];
    int lost[MAX_GPUS], num_lost = 0, health[MAX_GPUS][5], num_health = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = 0;
        char *value = strchr(line, ' ');
        if (value == NULL) continue;
        *value++ = 0;
        if (strcmp(line, "gpu") == 0 && state->num_gpus < MAX_GPUS) read_gpu(&state->gpus[state->num_gpus++], value);
        if (strcmp(line, "hide-processes") == 0) state->hide_processes = atoi(value);
        if (strcmp(line, "hang") == 0) state->hang_s = atof(value);
        if (strcmp(line, "lost") == 0 && num_lost < MAX_GPUS) lost[num_lost++] = atoi(value);
        if (strcmp(line, "health") == 0 && num_health < MAX_GPUS) {
            int *h = health[num_health];
            if (sscanf(value, "%d,%d,%d,%d,%d", h, h + 1, h + 2, h + 3, h + 4) == 5) num_health++;
        }
        if (strcmp(line, "init-error") == 0) state->init_error = atoi(value);
        if (strcmp(line, "driver") == 0) snprintf(state->driver, sizeof state->driver, "%s", value);
    }
    fclose(file);
    for (int i = 0; i < state->num_gpus; i++)
        for (int k = 0; k < num_lost; k++)
            if (state->gpus[i].index == lost[k]) state->gpus[i].is_lost = 1;
    for (int i = 0; i < state->num_gpus; i++)
        for (int k = 0; k < num_health; k++)
            if (state->gpus[i].index == health[k][0]) {
                state->gpus[i].recovery = health[k][1];
                state->gpus[i].ecc = health[k][2];
                state->gpus[i].is_pending = health[k][3];
                state->gpus[i].has_failed = health[k][4];
            }
}

/* Block like a call into a stuck driver: a SIGTERM does not end it. */
static void hang(double seconds) {
    if (seconds <= 0) return;
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before);
    struct timespec left = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&left, NULL);
    sigprocmask(SIG_SETMASK, &before, NULL);
}

/* A handle is a position in the file plus one. */
static nvmlReturn_t device(nvmlDevice_t handle, gpu_t *gpu, int *hide) {
    state_t state;
    if (!initialized) return UNINITIALIZED;
    read_state(&state);
    hang(state.hang_s);
    intptr_t at = (intptr_t)handle - 1;
    if (at < 0) return INVALID_ARGUMENT;
    if (at >= state.num_gpus) return LOST; /* its line was removed after the handle was taken */
    *gpu = state.gpus[at];
    if (hide != NULL) *hide = state.hide_processes;
    return gpu->is_lost ? LOST : OK;
}

static nvmlReturn_t text(char *out, unsigned int length, const char *value) {
    if (out == NULL) return INVALID_ARGUMENT;
    if (strlen(value) + 1 > length) return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return OK;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    state_t state;
    read_state(&state);
    if (state.init_error != 0) return state.init_error;
    initialized++;
    return OK;
}
nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
nvmlReturn_t nvmlShutdown(void) {
    if (!initialized) return UNINITIALIZED;
    initialized--;
    return OK;
}

const char *nvmlErrorString(nvmlReturn_t code) {
    switch (code) {
    case OK: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case 9: return "Driver Not Loaded";
    case LOST: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    state_t state;
    if (!initialized) return UNINITIALIZED;
    read_state(&state);
    return text(version, length, state.driver);
}
nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length) {
    state_t state;
    char full[96];
    read_state(&state);
    snprintf(full, sizeof full, "12.%s", state.driver);
    return text(version, length, full);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    state_t state;
    if (!initialized) return UNINITIALIZED;
    read_state(&state);
    hang(state.hang_s);
    *count = (unsigned int)state.num_gpus;
    return OK;
}
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *handle) {
    state_t state;
    if (!initialized) return UNINITIALIZED;
    read_state(&state);
    hang(state.hang_s);
    if (index >= (unsigned int)state.num_gpus) return INVALID_ARGUMENT;
    *handle = (nvmlDevice_t)(intptr_t)(index + 1);
    return state.gpus[index].is_lost ? LOST : OK;
}

#define DEVICE(gpu, handle, hide)                      \
    gpu_t gpu;                                         \
    nvmlReturn_t code = device(handle, &(gpu), hide);  \
    if (code != OK) return code;

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t handle, unsigned int *index) {
    DEVICE(gpu, handle, NULL)
    *index = (unsigned int)gpu.index;
    return OK;
}
nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t handle, unsigned int *minor) { return nvmlDeviceGetIndex(handle, minor); }
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t handle, char *name, unsigned int length) {
    DEVICE(gpu, handle, NULL)
    return text(name, length, gpu.name);
}
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t handle, char *uuid, unsigned int length) {
    DEVICE(gpu, handle, NULL)
    return text(uuid, length, gpu.uuid);
}

typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t *memory) {
    DEVICE(gpu, handle, NULL)
    if (gpu.used_mib < 0 || gpu.total_mib < 0) return NOT_SUPPORTED;
    memory->total = (unsigned long long)(gpu.total_mib * MIB);
    memory->used = (unsigned long long)(gpu.used_mib * MIB);
    memory->free = memory->total - memory->used;
    return OK;
}

typedef struct { unsigned int gpu, memory; } nvmlUtilization_t;
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t handle, nvmlUtilization_t *rates) {
    DEVICE(gpu, handle, NULL)
    if (gpu.util_pct < 0) return NOT_SUPPORTED;
    rates->gpu = (unsigned int)gpu.util_pct;
    rates->memory = rates->gpu / 2;
    return OK;
}
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t handle, unsigned int *milliwatts) {
    DEVICE(gpu, handle, NULL)
    if (gpu.power_w < 0) return NOT_SUPPORTED;
    *milliwatts = (unsigned int)(gpu.power_w * 1000);
    return OK;
}
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t handle, int sensor, unsigned int *celsius) {
    DEVICE(gpu, handle, NULL)
    if (sensor != 0) return INVALID_ARGUMENT;
    if (gpu.temp_c < 0) return NOT_SUPPORTED;
    *celsius = (unsigned int)gpu.temp_c;
    return OK;
}

typedef struct {
    unsigned int pid;
    unsigned long long used;
    unsigned int gpu_instance, compute_instance;
} nvmlProcessInfo_t;
static nvmlReturn_t processes(nvmlDevice_t handle, unsigned int *count, nvmlProcessInfo_t *infos) {
    int hide = 0;
    DEVICE(gpu, handle, &hide)
    unsigned int num = hide ? 0 : (unsigned int)gpu.num_processes, room = *count;
    *count = num;
    if (num > room) return INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < num; i++) {
        infos[i].pid = gpu.pids[i];
        infos[i].used = (unsigned long long)(gpu.pid_mib[i] * MIB);
        infos[i].gpu_instance = infos[i].compute_instance = 0xFFFFFFFFu;
    }
    return OK;
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t h, unsigned int *n, nvmlProcessInfo_t *p) { return processes(h, n, p); }
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t handle, unsigned int *count, nvmlProcessInfo_t *infos) {
    (void)infos;
    DEVICE(gpu, handle, NULL)
    *count = 0;
    return OK;
}

typedef struct {
    char bus_id_legacy[16];
    unsigned int domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} nvmlPciInfo_t;
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, nvmlPciInfo_t *pci) {
    DEVICE(gpu, handle, NULL)
    memset(pci, 0, sizeof *pci);
    pci->bus = 0x10u + (unsigned int)gpu.index;
    pci->device_id = 0x233010DEu; /* H100 SXM5 */
    snprintf(pci->bus_id_legacy, sizeof pci->bus_id_legacy, "0000:%02X:00.0", pci->bus);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus);
    return OK;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t handle, int kind, int counter, unsigned long long *count) {
    DEVICE(gpu, handle, NULL)
    *count = kind == 1 && counter == 0 ? (unsigned long long)gpu.ecc : 0; /* uncorrected, volatile */
    return OK;
}

#ifndef NVML_OLD
nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t handle, unsigned int *corrected, unsigned int *uncorrected, unsigned int *is_pending, unsigned int *has_failed) {
    DEVICE(gpu, handle, NULL)
    *corrected = 0;
    *uncorrected = (unsigned int)gpu.ecc;
    *is_pending = (unsigned int)gpu.is_pending;
    *has_failed = (unsigned int)gpu.has_failed;
    return OK;
}
typedef struct {
    unsigned int field, scope;
    long long timestamp, latency_us;
    int type, code;
    union { unsigned int ui; unsigned long long ull; double d; } value;
} nvmlFieldValue_t;
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t handle, int count, nvmlFieldValue_t *values) {
    DEVICE(gpu, handle, NULL)
    for (int i = 0; i < count; i++) {
        values[i].code = values[i].field == 230 ? OK : NOT_SUPPORTED; /* the recovery action */
        values[i].type = 1;
        values[i].value.ui = (unsigned int)gpu.recovery;
    }
    return OK;
}
typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t *memory) {
    nvmlMemory_t plain;
    if (memory->version != 0x02000028u) return 25; /* NVML_ERROR_ARGUMENT_VERSION_MISMATCH */
    nvmlReturn_t code = nvmlDeviceGetMemoryInfo(handle, &plain);
    if (code != OK) return code;
    memory->total = plain.total;
    memory->used = plain.used;
    memory->free = plain.free;
    memory->reserved = 0;
    return OK;
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t h, unsigned int *n, nvmlProcessInfo_t *p) { return processes(h, n, p); }
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t h, unsigned int *n, nvmlProcessInfo_t *p) {
    return nvmlDeviceGetGraphicsRunningProcesses_v2(h, n, p);
}
typedef struct {
    unsigned int version;
    int sensor, celsius;
} nvmlTemperature_v1_t;
nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t handle, nvmlTemperature_v1_t *temperature) {
    unsigned int celsius;
    nvmlReturn_t code = nvmlDeviceGetTemperature(handle, temperature->sensor, &celsius);
    if (code == OK) temperature->celsius = (int)celsius;
    return code;
}
#endif
