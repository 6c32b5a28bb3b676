/* A libnvidia-ml.so.1 without a GPU: it answers what a recorded machine says, and misbehaves as it is told.
 *
 * Reads   the text file named by FAKE_NVML_FILE (what each function answers; written by __init__.py, which documents
 *         its lines), once, at the first nvmlInit of the process;
 *         the file named by FAKE_NVML_CONTROL, mapped and looked at on each call: faults, lost GPUs, order, events.
 * Time    numbers that move are a function of CLOCK_MONOTONIC since control.base, so that a second process goes on
 *         where the first one was, as it would on a real machine.
 * Which of the functions a library exports is the linker's version script (symbols.txt), one set per driver.
 */

#define _GNU_SOURCE
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* ---- the control file; the same layout stands in __init__.py ---- */

enum { DEVICES = 64, FAULTS = 128, EVENTS = 256, KEY = 96 };
enum kind { NOTHING, SLOW, HANG, HANG_DEEP, FAIL, CRASH, VALUE, TEXT, TYPE, RESET, WRAP, WATCH };
enum state { PRESENT, LOST, GONE, RESET_REQUIRED };

struct fault {
    uint32_t kind;
    int32_t device; /* place in the recording, -1 any */
    char key[KEY];  /* a function, or what one of its answers is called */
    char text[KEY];
    int64_t code; /* an error code, milliseconds, a value type, a modulus */
    uint64_t after; /* so many calls are left in peace */
    double at; /* CLOCK_MONOTONIC */
    uint64_t hits;
};

struct event {
    int32_t device;
    uint32_t gi;
    uint32_t ci;
    uint32_t unused;
    uint64_t type;
    uint64_t data;
};

struct control {
    char magic[8];
    double base;
    double speed;
    uint32_t faults;
    uint32_t events; /* ever sent; a futex */
    uint64_t calls;
    int32_t order[DEVICES];
    int32_t state[DEVICES];
    struct fault fault[FAULTS];
    struct event event[EVENTS];
};

/* ---- what the recording says ---- */

struct number {
    int whole;
    long long i; /* the bits of an unsigned one, too */
    double d;
};

struct answer {
    int owner;
    char *key;
    char kind; /* n number, s series, c counter, t text, e error, d "there is such a struct" */
    char *text;
    int code;
    int count;
    struct number *values;
};

struct nvmlDevice_st {
    int used;
    int parent; /* -1: not a MIG device */
    int gi, ci;
    char uuid[96];
    char pci[32];
};

struct nvmlEventSet_st {
    uint64_t mask[DEVICES];
    uint32_t seen;
    int due; /* the first recorded event that is still to come */
};

struct nvmlGpmSample_st {
    int owner; /* -1: empty */
    double at;
};

struct due {
    double after;
    struct event event;
};

enum { SYSTEM = -1, OWNERS = 512, MIG0 = DEVICES, SLOTS = 1 << 16 };
static struct nvmlDevice_st owners[OWNERS];
static struct answer *slots[SLOTS];
static struct due dues[EVENTS];
static int n_devices, n_migs, n_dues;
static double every = 5.0;
static struct control *control;
static int references;
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;

static double monotonic(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static double elapsed(void) { return (monotonic() - control->base) * control->speed; }

static uint32_t hash(int owner, const char *key)
{
    uint32_t h = 2166136261u ^ (uint32_t)(owner + 1) * 2654435761u;
    for (; *key; key++)
        h = (h ^ (unsigned char)*key) * 16777619u;
    return h;
}

static struct answer *find(int owner, const char *key)
{
    for (uint32_t at = hash(owner, key);; at++) {
        struct answer *a = slots[at % SLOTS];
        if (!a || (a->owner == owner && !strcmp(a->key, key)))
            return a;
    }
}

static void complain(const char *what, const char *line)
{
    fprintf(stderr, "fake_nvml: %s: %s\n", what, line);
    abort();
}

static struct number parsed(const char *word)
{
    struct number n = {0};
    if (strpbrk(word, ".ein")) {
        n.d = strtod(word, NULL);
        n.i = isfinite(n.d) && fabs(n.d) < 9e18 ? (long long)n.d : 0;
    } else {
        n.whole = 1;
        n.i = word[0] == '-' ? strtoll(word, NULL, 10) : (long long)strtoull(word, NULL, 10);
        n.d = word[0] == '-' ? (double)n.i : (double)(unsigned long long)n.i;
    }
    return n;
}

static void learn(char *rest, const char *line)
{
    struct answer *a = calloc(1, sizeof *a);
    char *owner = strsep(&rest, " "), *key = strsep(&rest, " "), *kind = strsep(&rest, " ");
    static int count;
    if (!kind || ++count > SLOTS * 3 / 4)
        complain("an answer that cannot be kept", line);
    a->owner = atoi(owner);
    a->key = strdup(key);
    a->kind = *kind;
    if (*kind == 't')
        a->text = strdup(rest ? rest : "");
    else if (*kind == 'e')
        a->code = atoi(rest);
    else
        for (char *word; (word = strsep(&rest, " "));) {
            a->values = realloc(a->values, sizeof *a->values * (size_t)(a->count + 1));
            a->values[a->count++] = parsed(word);
        }
    for (uint32_t at = hash(a->owner, a->key);; at++)
        if (!slots[at % SLOTS]) {
            slots[at % SLOTS] = a;
            break;
        }
}

static void load(void)
{
    const char *name = getenv("FAKE_NVML_FILE"), *steering = getenv("FAKE_NVML_CONTROL");
    int descriptor = steering ? open(steering, O_RDWR | O_CLOEXEC) : -1;
    FILE *file = name ? fopen(name, "re") : NULL;
    if (!file || descriptor < 0)
        complain("FAKE_NVML_FILE or FAKE_NVML_CONTROL cannot be opened", name ? name : "(not set)");
    control = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (control == MAP_FAILED || memcmp(control->magic, "fakenv1", 8))
        complain("not a control file", steering);
    close(descriptor);
    char *line = NULL;
    size_t room = 0;
    for (ssize_t n; (n = getline(&line, &room, file)) > 0;) {
        line[strcspn(line, "\n")] = 0;
        char *rest = line, *what = strsep(&rest, " ");
        if (!strcmp(what, "answer")) {
            learn(rest, line);
        } else if (!strcmp(what, "device")) {
            struct nvmlDevice_st *d = &owners[n_devices++];
            d->used = 1, d->parent = -1;
            sscanf(rest, "%95s %31s", d->uuid, d->pci);
        } else if (!strcmp(what, "mig")) {
            struct nvmlDevice_st *d = &owners[MIG0 + n_migs++];
            d->used = 1;
            sscanf(rest, "%d %d %d %95s", &d->parent, &d->gi, &d->ci, d->uuid);
        } else if (!strcmp(what, "every")) {
            every = atof(rest);
        } else if (!strcmp(what, "event")) {
            struct due *d = &dues[n_dues++];
            unsigned long long type, data;
            sscanf(rest, "%lf %d %llu %llu %u %u", &d->after, &d->event.device, &type, &data, &d->event.gi,
                   &d->event.ci);
            d->event.type = type, d->event.data = data;
        } else {
            complain("a line of no known kind", line);
        }
    }
    free(line);
    fclose(file);
}

/* ---- misbehaviour ---- */

static void be_slow(int64_t milliseconds)
{
    struct timespec left = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    while (nanosleep(&left, &left) && errno == EINTR)
        ;
}

/* Never returns; no signal but SIGKILL helps. `deep` waits as a driver does, in the kernel and uninterruptibly, so
 * that /proc/<pid>/stat says D: the parent of a vfork does, until its child, which never does, executes or ends. */
static void hang(int deep)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    signal(SIGTERM, SIG_IGN); /* other threads shall not die of it either: a process that is stuck in a driver does not */
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    pid_t parent = getpid();
    if (deep && vfork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        while (getppid() == parent)
            pause();
        _exit(0);
    }
    for (;;)
        pause();
}

static int concerns(const struct fault *f, int device)
{
    return f->device < 0 || f->device == device;
}

/* The place in the recording of the GPU that an owner is, or is part of. */
static int gpu_of(int owner) { return owner >= MIG0 ? owners[owner].parent : owner; }

static int due(struct fault *f) { return __atomic_add_fetch(&f->hits, 1, __ATOMIC_RELAXED) > f->after; }

/* What every call does first. */
static nvmlReturn_t enter(const char *function, int device)
{
    if (!control)
        return NVML_ERROR_UNINITIALIZED;
    __atomic_add_fetch(&control->calls, 1, __ATOMIC_RELAXED);
    for (uint32_t i = 0; i < control->faults; i++) {
        struct fault *f = &control->fault[i];
        uint32_t kind = f->kind;
        if (kind == NOTHING || kind >= VALUE && kind != WATCH || !concerns(f, device) || strcmp(f->key, function))
            continue;
        if (!due(f))
            continue;
        if (kind == SLOW)
            be_slow(f->code);
        else if (kind == HANG || kind == HANG_DEEP)
            hang(kind == HANG_DEEP);
        else if (kind == FAIL)
            return (nvmlReturn_t)f->code;
        else if (kind == CRASH)
            signal(SIGSEGV, SIG_DFL), raise(SIGSEGV);
    }
    return references > 0 || !strncmp(function, "nvmlInit", 8) ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

/* The same for a call about a device; `owner` gets its number. */
static nvmlReturn_t enter_device(const char *function, nvmlDevice_t device, int *owner)
{
    int known = device >= owners && device < owners + OWNERS && device->used;
    *owner = known ? (int)(device - owners) : 0;
    nvmlReturn_t ret = enter(function, known ? gpu_of(*owner) : -1);
    if (ret != NVML_SUCCESS)
        return ret;
    if (!known)
        return NVML_ERROR_INVALID_ARGUMENT;
    switch (control->state[gpu_of(*owner)]) {
    case PRESENT:
        return NVML_SUCCESS;
    case RESET_REQUIRED:
        return NVML_ERROR_RESET_REQUIRED;
    default:
        return NVML_ERROR_GPU_IS_LOST;
    }
}

/* ---- answers ---- */

/* Whether a fault is about the answer called `key`, or the struct or list that it belongs to. */
static int is_part_of(const char *key, const char *fault)
{
    size_t n = strlen(fault);
    return n && !strncmp(key, fault, n) && (key[n] == 0 || strchr("/.#", key[n]));
}

/* A whole function that fails has done so in enter(), and what a struct or list is part of in exists(). */
static int fails_an_answer(const struct fault *f) { return f->kind == FAIL && strpbrk(f->key, "/.#"); }

/* The number called `key`; `type` gets a value type that a fault asks for, else stays. */
static nvmlReturn_t number_of(int owner, const char *key, struct number *out, int *type)
{
    const struct answer *a = find(owner, key);
    if (!a)
        return NVML_ERROR_NOT_SUPPORTED;
    if (a->kind == 'e')
        return (nvmlReturn_t)a->code;
    double t = elapsed();
    if (a->kind == 'c') {
        long double now = (long double)a->values[0].d + (long double)a->values[1].d * t;
        *out = (struct number){1, (long long)floorl(now), (double)now};
    } else if (a->count) {
        *out = a->values[a->kind == 's' && t > 0 ? (long)(t / every) % a->count : 0];
    } else {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    for (uint32_t i = 0; i < control->faults; i++) {
        struct fault *f = &control->fault[i];
        if (!(f->kind >= VALUE && f->kind <= WRAP && f->kind != TEXT || fails_an_answer(f)) ||
            !concerns(f, gpu_of(owner)) || !(f->kind == FAIL ? !strcmp(key, f->key) : is_part_of(key, f->key)) ||
            !due(f))
            continue;
        if (f->kind == FAIL) {
            return (nvmlReturn_t)f->code;
        } else if (f->kind == VALUE) {
            *out = parsed(f->text);
        } else if (f->kind == TYPE && type) {
            *type = (int)f->code;
        } else if (f->kind == RESET) {
            double since = (monotonic() - f->at) * control->speed;
            long double now = a->kind == 'c' ? (long double)a->values[1].d * since : 0;
            *out = (struct number){1, (long long)floorl(now), (double)now};
        } else if (f->kind == WRAP) {
            out->i = (long long)((unsigned long long)out->i % (unsigned long long)f->code);
            out->d = (double)out->i;
        }
    }
    return NVML_SUCCESS;
}

static void name(char key[KEY], const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(key, KEY, format, arguments);
    va_end(arguments);
}

static nvmlReturn_t give_uint(int owner, const char *key, void *out)
{
    struct number n;
    nvmlReturn_t ret = number_of(owner, key, &n, NULL);
    if (ret == NVML_SUCCESS)
        *(unsigned int *)out = (unsigned int)n.i;
    return ret;
}

static nvmlReturn_t give_ull(int owner, const char *key, unsigned long long *out)
{
    struct number n;
    nvmlReturn_t ret = number_of(owner, key, &n, NULL);
    if (ret == NVML_SUCCESS)
        *out = (unsigned long long)n.i;
    return ret;
}

static nvmlReturn_t text_of(int owner, const char *key, const char **out)
{
    const struct answer *a = find(owner, key);
    if (control)
        for (uint32_t i = 0; i < control->faults; i++) {
            struct fault *f = &control->fault[i];
            if ((f->kind != TEXT && !fails_an_answer(f)) || !concerns(f, gpu_of(owner)) || strcmp(key, f->key) || !due(f))
                continue;
            if (f->kind == FAIL)
                return (nvmlReturn_t)f->code;
            *out = f->text;
            return NVML_SUCCESS;
        }
    if (!a)
        return NVML_ERROR_NOT_SUPPORTED;
    if (a->kind == 'e')
        return (nvmlReturn_t)a->code;
    *out = a->kind == 't' ? a->text : "";
    return NVML_SUCCESS;
}

static nvmlReturn_t copy_text(const char *text, char *out, unsigned int length)
{
    if (strlen(text) + 1 > length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(out, text);
    return NVML_SUCCESS;
}

static nvmlReturn_t give_text(int owner, const char *key, char *out, unsigned int length)
{
    const char *text;
    nvmlReturn_t ret = text_of(owner, key, &text);
    return ret == NVML_SUCCESS ? copy_text(text, out, length) : ret;
}

/* Whether there is such a struct or list at all. */
static nvmlReturn_t exists(int owner, const char *key)
{
    const struct answer *a = find(owner, key);
    for (uint32_t i = 0; i < control->faults; i++) {
        struct fault *f = &control->fault[i];
        if (fails_an_answer(f) && concerns(f, gpu_of(owner)) && !strcmp(key, f->key) && due(f))
            return (nvmlReturn_t)f->code;
    }
    return !a ? NVML_ERROR_NOT_SUPPORTED : a->kind == 'e' ? (nvmlReturn_t)a->code : NVML_SUCCESS;
}

/* A member of a struct; one that is not recorded is 0. */
static unsigned long long member(int owner, const char *of, const char *called)
{
    char key[KEY];
    struct number n = {0};
    name(key, "%s.%s", of, called);
    return number_of(owner, key, &n, NULL) == NVML_SUCCESS ? (unsigned long long)n.i : 0;
}

static unsigned int length_of(int owner, const char *of)
{
    char key[KEY];
    struct number n = {0};
    name(key, "%s#", of);
    return number_of(owner, key, &n, NULL) == NVML_SUCCESS ? (unsigned int)n.i : 0;
}

static unsigned long long item(int owner, const char *of, unsigned int index)
{
    char key[KEY];
    struct number n = {0};
    name(key, "%s#%u", of, index);
    return number_of(owner, key, &n, NULL) == NVML_SUCCESS ? (unsigned long long)n.i : 0;
}

static unsigned long long item_member(int owner, const char *of, unsigned int index, const char *called)
{
    char key[KEY];
    name(key, "%s#%u", of, index);
    return member(owner, key, called);
}

static const char *uuid_of(int owner)
{
    const char *text = owners[owner].uuid;
    char key[KEY] = "nvmlDeviceGetUUID";
    return text_of(owner, key, &text) == NVML_SUCCESS ? text : owners[owner].uuid;
}

#define TRY(expression)                     \
    do {                                    \
        nvmlReturn_t tried = (expression);  \
        if (tried != NVML_SUCCESS)          \
            return tried;                   \
    } while (0)
#define NEED(condition)                        \
    do {                                       \
        if (!(condition))                      \
            return NVML_ERROR_INVALID_ARGUMENT; \
    } while (0)
#define ENTER(device) \
    int owner;        \
    TRY(enter_device(__func__, device, &owner))
#define VERSION(given, asked)                           \
    do {                                                \
        if ((given) != (asked))                         \
            return NVML_ERROR_ARGUMENT_VERSION_MISMATCH; \
    } while (0)

/* One number about a device. */
#define UINT(function, type)                              \
    nvmlReturn_t function(nvmlDevice_t device, type *out) \
    {                                                     \
        ENTER(device);                                    \
        NEED(out);                                        \
        return give_uint(owner, #function, out);          \
    }
#define ULL(function)                                                   \
    nvmlReturn_t function(nvmlDevice_t device, unsigned long long *out) \
    {                                                                   \
        ENTER(device);                                                  \
        NEED(out);                                                      \
        return give_ull(owner, #function, out);                         \
    }
/* One number by one argument. */
#define UINT_BY(function, argument, type)                            \
    nvmlReturn_t function(nvmlDevice_t device, argument a, type *out) \
    {                                                                \
        ENTER(device);                                               \
        NEED(out);                                                   \
        char key[KEY];                                               \
        name(key, "%s/%u", #function, (unsigned int)a);              \
        return give_uint(owner, key, out);                           \
    }
#define TEXT_OF(function)                                                        \
    nvmlReturn_t function(nvmlDevice_t device, char *out, unsigned int length)   \
    {                                                                            \
        ENTER(device);                                                           \
        NEED(out);                                                               \
        return give_text(owner, #function, out, length);                         \
    }
/* Two numbers of a recorded struct. */
#define PAIR(function, type, first, second)                                    \
    nvmlReturn_t function(nvmlDevice_t device, type *one, type *two)           \
    {                                                                          \
        ENTER(device);                                                         \
        NEED(one &&two);                                                       \
        TRY(exists(owner, #function));                                         \
        *one = (type)member(owner, #function, first);                          \
        *two = (type)member(owner, #function, second);                         \
        return NVML_SUCCESS;                                                   \
    }

/* ---- lifecycle ---- */

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    pthread_mutex_lock(&loading);
    if (!control)
        load();
    pthread_mutex_unlock(&loading);
    TRY(enter(__func__, -1));
    __atomic_add_fetch(&references, 1, __ATOMIC_RELAXED);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInit(void) { return nvmlInitWithFlags(0); }
nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

nvmlReturn_t nvmlShutdown(void)
{
    TRY(enter(__func__, -1));
    __atomic_sub_fetch(&references, 1, __ATOMIC_RELAXED);
    return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t result)
{
    static const char *const words[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
        "Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded",
        "Timeout", "Interrupt Request Issue", "NVML Shared Library Not Found", "Function Not Found",
        "Corrupted infoROM", "GPU is lost", "GPU requires reset", "The operating system has blocked the request",
        "Driver/library version mismatch", "In use by another client", "Insufficient Memory", "No data",
        "VGPU ECC not supported", "Insufficient resources", "Frequency not supported", "Argument version mismatch",
        "Deprecated", "Not ready", "No GPUs found", "Invalid state", "Reset type not supported",
    };
    return (unsigned int)result < sizeof words / sizeof *words ? words[result] : "Unknown Error";
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    TRY(enter(__func__, -1));
    NEED(version);
    return give_text(SYSTEM, __func__, version, length);
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    TRY(enter(__func__, -1));
    NEED(version);
    return give_text(SYSTEM, __func__, version, length);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    TRY(enter(__func__, -1));
    NEED(version);
    return give_uint(SYSTEM, "nvmlSystemGetCudaDriverVersion_v2", version);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    TRY(enter(__func__, -1));
    NEED(version);
    return give_uint(SYSTEM, __func__, version);
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *out, unsigned int length)
{
    TRY(enter(__func__, -1));
    NEED(out && length);
    char key[KEY];
    const char *text;
    name(key, "%s/%u", __func__, pid);
    if (text_of(SYSTEM, key, &text) != NVML_SUCCESS)
        return NVML_ERROR_NOT_FOUND;
    snprintf(out, length, "%s", text); /* the header: a longer name is truncated */
    return NVML_SUCCESS;
}

/* ---- enumeration ---- */

/* The device at an index now, or -1. */
static int at_index(unsigned int index)
{
    for (int i = 0; i < n_devices; i++) {
        int device = control->order[i];
        if (control->state[device] == GONE)
            continue;
        if (index-- == 0)
            return device;
    }
    return -1;
}

static nvmlReturn_t handle_of(int device, nvmlDevice_t *out)
{
    if (control->state[device] == LOST)
        return NVML_ERROR_GPU_IS_LOST;
    *out = &owners[device];
    return NVML_SUCCESS;
}

static nvmlReturn_t count_of(const char *function, unsigned int *count)
{
    TRY(enter(function, -1));
    NEED(count);
    for (*count = 0; at_index(*count) >= 0;)
        (*count)++;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *count) { return count_of(__func__, count); }
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) { return count_of(__func__, count); }

static nvmlReturn_t by_index(const char *function, unsigned int index, nvmlDevice_t *out)
{
    int device = control ? at_index(index) : -1;
    TRY(enter(function, device));
    NEED(out && device >= 0);
    return handle_of(device, out);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *out) { return by_index(__func__, index, out); }
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *out)
{
    return by_index(__func__, index, out);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out)
{
    TRY(enter(__func__, -1));
    NEED(uuid && out);
    for (int i = 0; i < OWNERS; i++)
        if (owners[i].used && !strcmp(uuid, uuid_of(i)) && control->state[gpu_of(i)] != GONE) {
            TRY(handle_of(gpu_of(i), out));
            *out = &owners[i];
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t by_pci(const char *function, const char *address, nvmlDevice_t *out)
{
    TRY(enter(function, -1));
    NEED(address && out);
    unsigned int asked[3], domain, bus, slot;
    NEED(sscanf(address, "%x:%x:%x", &asked[0], &asked[1], &asked[2]) == 3);
    for (int i = 0; i < n_devices; i++)
        if (sscanf(owners[i].pci, "%x:%x:%x", &domain, &bus, &slot) == 3 && domain == asked[0] && bus == asked[1] &&
            slot == asked[2] && control->state[i] != GONE)
            return handle_of(i, out);
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *address, nvmlDevice_t *out)
{
    return by_pci(__func__, address, out);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *address, nvmlDevice_t *out)
{
    return by_pci(__func__, address, out);
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *out)
{
    TRY(enter(__func__, -1));
    NEED(serial && out);
    const char *text;
    for (int i = 0; i < n_devices; i++)
        if (control->state[i] != GONE && text_of(i, "nvmlDeviceGetSerial", &text) == NVML_SUCCESS &&
            !strcmp(text, serial))
            return handle_of(i, out);
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *out, unsigned int length)
{
    ENTER(device);
    NEED(out);
    return copy_text(uuid_of(owner), out, length);
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    ENTER(device);
    NEED(index);
    for (*index = 0; at_index(*index) >= 0; (*index)++)
        if (at_index(*index) == owner)
            return NVML_SUCCESS;
    return NVML_ERROR_INVALID_ARGUMENT;
}

static void address_of(int owner, unsigned int *domain, unsigned int *bus, unsigned int *slot, char *text)
{
    *domain = *bus = *slot = 0;
    sscanf(owners[owner].pci, "%x:%x:%x", domain, bus, slot);
    snprintf(text, NVML_DEVICE_PCI_BUS_ID_BUFFER_SIZE, "%08X:%02X:%02X.0", *domain, *bus, *slot);
}

static void fill_pci(nvmlPciInfo_t *pci, unsigned int device, unsigned int subsystem)
{
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", pci->domain & 0xffff, pci->bus & 0xff,
             pci->device & 0xff);
    pci->pciDeviceId = device;
    pci->pciSubSystemId = subsystem;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    ENTER(device);
    NEED(pci && owner < MIG0);
    address_of(owner, &pci->domain, &pci->bus, &pci->device, pci->busId);
    fill_pci(pci, (unsigned int)member(owner, __func__, "pciDeviceId"),
             (unsigned int)member(owner, __func__, "pciSubSystemId"));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t *pci)
{
    ENTER(device);
    NEED(pci && owner < MIG0);
    VERSION(pci->version, nvmlPciInfoExt_v1);
    address_of(owner, &pci->domain, &pci->bus, &pci->device, pci->busId);
    pci->pciDeviceId = (unsigned int)member(owner, "nvmlDeviceGetPciInfo_v3", "pciDeviceId");
    pci->pciSubSystemId = (unsigned int)member(owner, "nvmlDeviceGetPciInfo_v3", "pciSubSystemId");
    pci->baseClass = 3;
    pci->subClass = 2;
    return NVML_SUCCESS;
}

/* ---- identity and state ---- */

TEXT_OF(nvmlDeviceGetName)
TEXT_OF(nvmlDeviceGetSerial)
TEXT_OF(nvmlDeviceGetVbiosVersion)
TEXT_OF(nvmlDeviceGetInforomImageVersion)
TEXT_OF(nvmlDeviceGetBoardPartNumber)
UINT(nvmlDeviceGetMinorNumber, unsigned int)
UINT(nvmlDeviceGetBrand, nvmlBrandType_t)
UINT(nvmlDeviceGetArchitecture, nvmlDeviceArchitecture_t)
UINT(nvmlDeviceGetBoardId, unsigned int)
UINT(nvmlDeviceGetModuleId, unsigned int)
UINT(nvmlDeviceGetPersistenceMode, nvmlEnableState_t)
UINT(nvmlDeviceGetComputeMode, nvmlComputeMode_t)
UINT(nvmlDeviceGetPerformanceState, nvmlPstates_t)
UINT(nvmlDeviceGetPowerState, nvmlPstates_t)
UINT(nvmlDeviceGetDisplayMode, nvmlEnableState_t)
UINT(nvmlDeviceGetDisplayActive, nvmlEnableState_t)
UINT_BY(nvmlDeviceGetClockInfo, nvmlClockType_t, unsigned int)
UINT_BY(nvmlDeviceGetMaxClockInfo, nvmlClockType_t, unsigned int)
UINT_BY(nvmlDeviceGetApplicationsClock, nvmlClockType_t, unsigned int)
UINT_BY(nvmlDeviceGetDefaultApplicationsClock, nvmlClockType_t, unsigned int)
UINT_BY(nvmlDeviceGetMaxCustomerBoostClock, nvmlClockType_t, unsigned int)
ULL(nvmlDeviceGetCurrentClocksEventReasons)
ULL(nvmlDeviceGetSupportedClocksEventReasons)
ULL(nvmlDeviceGetCurrentClocksThrottleReasons)
ULL(nvmlDeviceGetSupportedClocksThrottleReasons)
PAIR(nvmlDeviceGetCudaComputeCapability, int, "major", "minor")
PAIR(nvmlDeviceGetEccMode, nvmlEnableState_t, "current", "pending")
PAIR(nvmlDeviceGetGspFirmwareMode, unsigned int, "isEnabled", "defaultMode")

nvmlReturn_t nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char *version)
{
    ENTER(device);
    NEED(version);
    return give_text(owner, __func__, version, NVML_GSP_FIRMWARE_VERSION_BUF_SIZE);
}

nvmlReturn_t nvmlDeviceGetInforomVersion(nvmlDevice_t device, nvmlInforomObject_t object, char *out, unsigned int length)
{
    ENTER(device);
    NEED(out);
    char key[KEY];
    name(key, "%s/%u", __func__, (unsigned int)object);
    return give_text(owner, key, out, length);
}

nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, nvmlClockType_t type, nvmlClockId_t id, unsigned int *out)
{
    ENTER(device);
    NEED(out);
    char key[KEY];
    name(key, "%s/%u/%u", __func__, (unsigned int)type, (unsigned int)id);
    return give_uint(owner, key, out);
}

nvmlReturn_t nvmlDeviceGetPlatformInfo(nvmlDevice_t device, nvmlPlatformInfo_t *out)
{
    ENTER(device);
    NEED(out);
    if (out->version != nvmlPlatformInfo_v1)
        VERSION(out->version, nvmlPlatformInfo_v2);
    TRY(exists(owner, __func__));
    char key[KEY];
    const char *text = "";
    name(key, "%s.chassisSerialNumber", __func__);
    (void)text_of(owner, key, &text);
    memset(out->chassisSerialNumber, 0, sizeof out->chassisSerialNumber);
    memcpy(out->chassisSerialNumber, text, strnlen(text, sizeof out->chassisSerialNumber));
    out->slotNumber = (unsigned char)member(owner, __func__, "slotNumber");
    out->trayIndex = (unsigned char)member(owner, __func__, "trayIndex");
    out->hostId = (unsigned char)member(owner, __func__, "hostId");
    out->peerType = (unsigned char)member(owner, __func__, "peerType");
    out->moduleId = (unsigned char)member(owner, __func__, "moduleId");
    return NVML_SUCCESS;
}

/* ---- temperature and power ---- */

UINT_BY(nvmlDeviceGetTemperature, nvmlTemperatureSensors_t, unsigned int)
UINT_BY(nvmlDeviceGetTemperatureThreshold, nvmlTemperatureThresholds_t, unsigned int)
UINT(nvmlDeviceGetPowerUsage, unsigned int)
UINT(nvmlDeviceGetEnforcedPowerLimit, unsigned int)
UINT(nvmlDeviceGetPowerManagementLimit, unsigned int)
UINT(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int)
UINT(nvmlDeviceGetPowerManagementMode, nvmlEnableState_t)
PAIR(nvmlDeviceGetPowerManagementLimitConstraints, unsigned int, "minLimit", "maxLimit")
ULL(nvmlDeviceGetTotalEnergyConsumption)
UINT(nvmlDeviceGetFanSpeed, unsigned int)
UINT_BY(nvmlDeviceGetFanSpeed_v2, unsigned int, unsigned int)
UINT(nvmlDeviceGetNumFans, unsigned int)

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *out)
{
    ENTER(device);
    NEED(out);
    VERSION(out->version, nvmlTemperature_v1);
    char key[KEY];
    name(key, "%s/%u", __func__, (unsigned int)out->sensorType);
    return give_uint(owner, key, &out->temperature);
}

nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_t *out)
{
    ENTER(device);
    NEED(out);
    VERSION(out->version, nvmlMarginTemperature_v1);
    return give_uint(owner, __func__, &out->marginTemperature);
}

nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, nvmlPerfPolicyType_t policy, nvmlViolationTime_t *out)
{
    ENTER(device);
    NEED(out);
    char key[KEY];
    name(key, "%s/%u", __func__, (unsigned int)policy);
    TRY(exists(owner, key));
    out->referenceTime = member(owner, key, "referenceTime");
    out->violationTime = member(owner, key, "violationTime");
    return NVML_SUCCESS;
}

/* ---- use and memory ---- */

PAIR(nvmlDeviceGetEncoderUtilization, unsigned int, "utilization", "samplingPeriodUs")
PAIR(nvmlDeviceGetDecoderUtilization, unsigned int, "utilization", "samplingPeriodUs")
UINT(nvmlDeviceGetMemoryBusWidth, unsigned int)
UINT(nvmlDeviceGetNumGpuCores, unsigned int)

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out)
{
    ENTER(device);
    NEED(out);
    TRY(exists(owner, __func__));
    out->gpu = (unsigned int)member(owner, __func__, "gpu");
    out->memory = (unsigned int)member(owner, __func__, "memory");
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out)
{
    ENTER(device);
    NEED(out);
    VERSION(out->version, nvmlMemory_v2);
    TRY(exists(owner, __func__));
    out->total = member(owner, __func__, "total");
    out->reserved = member(owner, __func__, "reserved");
    out->free = member(owner, __func__, "free");
    out->used = member(owner, __func__, "used");
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out)
{
    ENTER(device);
    NEED(out);
    static const char v2[] = "nvmlDeviceGetMemoryInfo_v2";
    TRY(exists(owner, v2));
    out->total = member(owner, v2, "total");
    out->free = member(owner, v2, "free");
    out->used = member(owner, v2, "used") + member(owner, v2, "reserved");
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *out)
{
    ENTER(device);
    NEED(out);
    TRY(exists(owner, __func__));
    out->bar1Total = member(owner, __func__, "bar1Total");
    out->bar1Free = member(owner, __func__, "bar1Free");
    out->bar1Used = member(owner, __func__, "bar1Used");
    return NVML_SUCCESS;
}

/* Fields that drivers give as unsigned int; the others are unsigned long long, or double where recorded as such. */
static int is_uint_field(unsigned int field)
{
    static const unsigned char ids[] = {82, 90, 91, 142, 143, 144, 145, 146, 147, 164, 165, 166, 167, 185, 186, 187,
                                        188, 189, 190, 192, 230};
    return memchr(ids, (int)field, sizeof ids) && field < 256;
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    ENTER(device);
    NEED(values && count > 0);
    for (int i = 0; i < count; i++) {
        nvmlFieldValue_t *v = &values[i];
        struct timespec now;
        struct number n = {0};
        char key[KEY];
        int type = -1;
        if (v->scopeId)
            name(key, "field/%u/%u", v->fieldId, v->scopeId);
        else
            name(key, "field/%u", v->fieldId);
        v->nvmlReturn = number_of(owner, key, &n, &type);
        if (v->nvmlReturn == NVML_ERROR_NOT_SUPPORTED && !v->scopeId) { /* the first link is recorded with its scope */
            name(key, "field/%u/0", v->fieldId);
            v->nvmlReturn = number_of(owner, key, &n, &type);
        }
        clock_gettime(CLOCK_REALTIME, &now);
        v->timestamp = (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000;
        v->latencyUsec = 1;
        if (type < 0)
            type = !n.whole                       ? NVML_VALUE_TYPE_DOUBLE
                   : is_uint_field(v->fieldId)    ? NVML_VALUE_TYPE_UNSIGNED_INT
                   : n.i < 0 && n.d < 0           ? NVML_VALUE_TYPE_SIGNED_LONG_LONG
                                                  : NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
        v->valueType = (nvmlValueType_t)type;
        memset(&v->value, 0, sizeof v->value);
        switch (type) {
        case NVML_VALUE_TYPE_DOUBLE:
            v->value.dVal = n.d;
            break;
        case NVML_VALUE_TYPE_UNSIGNED_INT:
            v->value.uiVal = (unsigned int)n.i;
            break;
        case NVML_VALUE_TYPE_SIGNED_INT:
            v->value.siVal = (int)n.i;
            break;
        case NVML_VALUE_TYPE_UNSIGNED_SHORT:
            v->value.usVal = (unsigned short)n.i;
            break;
        default:
            v->value.ullVal = (unsigned long long)n.i;
        }
    }
    return NVML_SUCCESS;
}

/* ---- memory errors ---- */

UINT(nvmlDeviceGetRetiredPagesPendingStatus, nvmlEnableState_t)

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter,
                                         unsigned long long *out)
{
    ENTER(device);
    NEED(out);
    char key[KEY];
    name(key, "%s/%u/%u", __func__, (unsigned int)type, (unsigned int)counter);
    return give_ull(owner, key, out);
}

nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, nvmlMemoryErrorType_t type,
                                             nvmlEccCounterType_t counter, nvmlMemoryLocation_t place,
                                             unsigned long long *out)
{
    ENTER(device);
    NEED(out);
    char key[KEY];
    name(key, "%s/%u/%u/%u", __func__, (unsigned int)type, (unsigned int)counter, (unsigned int)place);
    return give_ull(owner, key, out);
}

nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_t *out)
{
    ENTER(device);
    NEED(out);
    VERSION(out->version, nvmlEccSramErrorStatus_v1);
    TRY(exists(owner, __func__));
#define PUT(field) out->field = member(owner, __func__, #field)
    PUT(aggregateUncParity);
    PUT(aggregateUncSecDed);
    PUT(aggregateCor);
    PUT(volatileUncParity);
    PUT(volatileUncSecDed);
    PUT(volatileCor);
    PUT(aggregateUncBucketL2);
    PUT(aggregateUncBucketSm);
    PUT(aggregateUncBucketPcie);
    PUT(aggregateUncBucketMcu);
    PUT(aggregateUncBucketOther);
#undef PUT
    out->bThresholdExceeded = (unsigned int)member(owner, __func__, "bThresholdExceeded");
    return NVML_SUCCESS;
}

static nvmlReturn_t retired(int owner, unsigned int cause, unsigned int *count, unsigned long long *pages)
{
    char key[KEY];
    name(key, "nvmlDeviceGetRetiredPages/%u", cause);
    TRY(exists(owner, key));
    unsigned int room = *count;
    *count = length_of(owner, key);
    if (!pages || room < *count)
        return *count ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
    for (unsigned int i = 0; i < *count; i++)
        pages[i] = item(owner, key, i);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *count,
                                       unsigned long long *pages)
{
    ENTER(device);
    NEED(count);
    return retired(owner, (unsigned int)cause, count, pages);
}

nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *count,
                                          unsigned long long *pages, unsigned long long *times)
{
    ENTER(device);
    NEED(count);
    TRY(retired(owner, (unsigned int)cause, count, pages));
    for (unsigned int i = 0; times && i < *count; i++)
        times[i] = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrected, unsigned int *uncorrected,
                                       unsigned int *pending, unsigned int *failed)
{
    ENTER(device);
    NEED(corrected && uncorrected && pending && failed);
    TRY(exists(owner, __func__));
    *corrected = (unsigned int)member(owner, __func__, "corrRows");
    *uncorrected = (unsigned int)member(owner, __func__, "uncRows");
    *pending = (unsigned int)member(owner, __func__, "isPending");
    *failed = (unsigned int)member(owner, __func__, "failureOccurred");
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRemappedRows_v2(nvmlDevice_t device, nvmlRemappedRowsInfo_v2_t *out)
{
    ENTER(device);
    NEED(out);
    static const char rows[] = "nvmlDeviceGetRemappedRows";
    TRY(exists(owner, rows));
    out->corrActiveRemaps = (unsigned int)member(owner, rows, "corrRows");
    out->corrInactiveRemaps = 0;
    out->uncActiveRemaps = (unsigned int)member(owner, rows, "uncRows");
    out->uncInactiveRemaps = 0;
    out->bPending = (unsigned int)member(owner, rows, "isPending");
    out->bFailureOccurred = (unsigned int)member(owner, rows, "failureOccurred");
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *out)
{
    ENTER(device);
    NEED(out);
    TRY(exists(owner, __func__));
    out->max = (unsigned int)member(owner, __func__, "max");
    out->high = (unsigned int)member(owner, __func__, "high");
    out->partial = (unsigned int)member(owner, __func__, "partial");
    out->low = (unsigned int)member(owner, __func__, "low");
    out->none = (unsigned int)member(owner, __func__, "none");
    return NVML_SUCCESS;
}

/* The header's struct is one number without a version; nvidia-ml-py reads another one and sees 0 always. */
nvmlReturn_t nvmlDeviceGetUnrepairableMemoryFlag_v1(nvmlDevice_t device, nvmlUnrepairableMemoryStatus_v1_t *out)
{
    ENTER(device);
    NEED(out);
    return give_uint(owner, __func__, &out->bUnrepairableMemory);
}

nvmlReturn_t nvmlDeviceGetRepairStatus(nvmlDevice_t device, nvmlRepairStatus_t *out)
{
    ENTER(device);
    NEED(out);
    VERSION(out->version, nvmlRepairStatus_v1);
    TRY(exists(owner, __func__));
    out->bChannelRepairPending = (unsigned int)member(owner, __func__, "bChannelRepairPending");
    out->bTpcRepairPending = (unsigned int)member(owner, __func__, "bTpcRepairPending");
    return NVML_SUCCESS;
}

/* Recorded as {"error": 14} where the InfoROM is broken, as 0 where it is not. */
nvmlReturn_t nvmlDeviceValidateInforom(nvmlDevice_t device)
{
    ENTER(device);
    return exists(owner, __func__);
}

/* ---- PCIe ---- */

UINT(nvmlDeviceGetPcieReplayCounter, unsigned int)
UINT_BY(nvmlDeviceGetPcieThroughput, nvmlPcieUtilCounter_t, unsigned int)
UINT(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int)
UINT(nvmlDeviceGetCurrPcieLinkWidth, unsigned int)
UINT(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int)
UINT(nvmlDeviceGetMaxPcieLinkWidth, unsigned int)
UINT(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned int)
UINT(nvmlDeviceGetPcieSpeed, unsigned int)
UINT(nvmlDeviceGetPcieLinkMaxSpeed, unsigned int)

/* ---- NVLink and fabric ---- */

UINT_BY(nvmlDeviceGetNvLinkState, unsigned int, nvmlEnableState_t)
UINT_BY(nvmlDeviceGetNvLinkVersion, unsigned int, unsigned int)
UINT_BY(nvmlDeviceGetNvLinkRemoteDeviceType, unsigned int, nvmlIntNvLinkDeviceType_t)

nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int link, nvmlNvLinkCapability_t what,
                                           unsigned int *out)
{
    ENTER(device);
    NEED(out);
    char key[KEY];
    name(key, "%s/%u/%u", __func__, link, (unsigned int)what);
    return give_uint(owner, key, out);
}

nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned int link, nvmlNvLinkErrorCounter_t counter,
                                             unsigned long long *out)
{
    ENTER(device);
    NEED(out);
    char key[KEY];
    name(key, "%s/%u/%u", __func__, link, (unsigned int)counter);
    return give_ull(owner, key, out);
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
    ENTER(device);
    NEED(pci);
    char key[KEY], part[KEY + 8];
    const char *text;
    name(key, "%s/%u", __func__, link);
    TRY(exists(owner, key));
    snprintf(part, sizeof part, "%s.busId", key);
    memset(pci, 0, sizeof *pci);
    if (text_of(owner, part, &text) == NVML_SUCCESS || text_of(owner, key, &text) == NVML_SUCCESS) {
        sscanf(text, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
        snprintf(pci->busId, sizeof pci->busId, "%s", text);
    }
    fill_pci(pci, (unsigned int)member(owner, key, "pciDeviceId"), (unsigned int)member(owner, key, "pciSubSystemId"));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkInfo(nvmlDevice_t device, nvmlNvLinkInfo_t *out)
{
    ENTER(device);
    NEED(out);
    if (out->version != nvmlNvLinkInfo_v1)
        VERSION(out->version, nvmlNvLinkInfo_v2);
    TRY(exists(owner, __func__));
    out->isNvleEnabled = (unsigned int)member(owner, __func__, "isNvleEnabled");
    if (out->version == nvmlNvLinkInfo_v2)
        out->firmwareInfo.numValidEntries = 0;
    return NVML_SUCCESS;
}

static void cluster(int owner, unsigned char uuid[NVML_GPU_FABRIC_UUID_LEN])
{
    const char *text = "";
    memset(uuid, 0, NVML_GPU_FABRIC_UUID_LEN);
    (void)text_of(owner, "nvmlDeviceGetGpuFabricInfoV.clusterUuid", &text);
    for (unsigned int i = 0, byte; i < NVML_GPU_FABRIC_UUID_LEN && *text; text += strspn(text, "-"), i++, text += 2)
        if (sscanf(text += strspn(text, "-"), "%2x", &byte) == 1)
            uuid[i] = (unsigned char)byte;
        else
            return;
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *out)
{
    ENTER(device);
    NEED(out);
    if (out->version != nvmlGpuFabricInfo_v2)
        VERSION(out->version, nvmlGpuFabricInfo_v3);
    TRY(exists(owner, __func__));
    cluster(owner, out->clusterUuid);
    out->status = (nvmlReturn_t)member(owner, __func__, "status");
    out->cliqueId = (unsigned int)member(owner, __func__, "cliqueId");
    out->state = (nvmlGpuFabricState_t)member(owner, __func__, "state");
    out->healthMask = (unsigned int)member(owner, __func__, "healthMask");
    if (out->version == nvmlGpuFabricInfo_v3) /* the struct of version 2 ends before it */
        out->healthSummary = (unsigned char)member(owner, __func__, "healthSummary");
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *out)
{
    ENTER(device);
    NEED(out);
    static const char v[] = "nvmlDeviceGetGpuFabricInfoV";
    TRY(exists(owner, v));
    cluster(owner, out->clusterUuid);
    out->status = (nvmlReturn_t)member(owner, v, "status");
    out->cliqueId = (unsigned int)member(owner, v, "cliqueId");
    out->state = (nvmlGpuFabricState_t)member(owner, v, "state");
    return NVML_SUCCESS;
}

/* ---- topology: a second GPU is named in a key by its place in the recording, that of either of the two ---- */

UINT(nvmlDeviceGetNumaNodeId, unsigned int)

static nvmlReturn_t other(nvmlDevice_t device, int *place)
{
    NEED(device >= owners && device < owners + DEVICES && device->used);
    *place = (int)(device - owners);
    int state = control->state[*place];
    return state == PRESENT ? NVML_SUCCESS : state == RESET_REQUIRED ? NVML_ERROR_RESET_REQUIRED : NVML_ERROR_GPU_IS_LOST;
}

static nvmlReturn_t between(int one, int two, const char *function, const char *rest, unsigned int *out)
{
    char key[KEY];
    name(key, "%s/%d%s", function, two, rest);
    if (!find(one, key)) {
        name(key, "%s/%d%s", function, one, rest);
        one = two;
    }
    return give_uint(one, key, out);
}

static nvmlReturn_t level(int one, int two, unsigned int *out)
{
    return between(one, two, "nvmlDeviceGetTopologyCommonAncestor", "", out);
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t second, nvmlGpuTopologyLevel_t *out)
{
    ENTER(device);
    int two;
    NEED(out);
    TRY(other(second, &two));
    unsigned int found;
    TRY(level(owner, two, &found));
    *out = (nvmlGpuTopologyLevel_t)found;
    return NVML_SUCCESS;
}

static nvmlReturn_t give_devices(const int *found, unsigned int n, unsigned int *count, nvmlDevice_t *devices)
{
    unsigned int room = *count;
    *count = n;
    if (!devices || !room)
        return NVML_SUCCESS;
    if (room < n)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < n; i++)
        devices[i] = &owners[found[i]];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, nvmlGpuTopologyLevel_t asked, unsigned int *count,
                                              nvmlDevice_t *devices)
{
    ENTER(device);
    NEED(count);
    int found[DEVICES];
    unsigned int n = 0, l;
    for (int i = 0; i < n_devices; i++)
        if (i != owner && control->state[i] == PRESENT && level(owner, i, &l) == NVML_SUCCESS &&
            l == (unsigned int)asked)
            found[n++] = i;
    return give_devices(found, n, count, devices);
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t second, nvmlGpuP2PCapsIndex_t what,
                                    nvmlGpuP2PStatus_t *out)
{
    ENTER(device);
    int two;
    NEED(out);
    TRY(other(second, &two));
    char rest[KEY];
    unsigned int found;
    name(rest, "/%u", (unsigned int)what);
    TRY(between(owner, two, __func__, rest, &found));
    *out = (nvmlGpuP2PStatus_t)found;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetTopologyGpuSet(unsigned int cpu, unsigned int *count, nvmlDevice_t *devices)
{
    TRY(enter(__func__, -1));
    NEED(count);
    char key[KEY];
    int found[DEVICES];
    unsigned int n = 0;
    name(key, "%s/%u", __func__, cpu);
    TRY(exists(SYSTEM, key));
    for (unsigned int i = 0; i < length_of(SYSTEM, key) && n < DEVICES; i++) {
        int place = (int)item(SYSTEM, key, i);
        if (place >= 0 && place < n_devices)
            found[n++] = place;
    }
    return give_devices(found, n, count, devices);
}

static nvmlReturn_t words(int owner, const char *key, unsigned int size, unsigned long *out)
{
    NEED(out && size);
    TRY(exists(owner, key));
    for (unsigned int i = 0; i < size; i++)
        out[i] = i < length_of(owner, key) ? (unsigned long)item(owner, key, i) : 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int size, unsigned long *out)
{
    ENTER(device);
    return words(owner, __func__, size, out);
}

nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int size, unsigned long *out,
                                                 nvmlAffinityScope_t scope)
{
    ENTER(device);
    char key[KEY];
    name(key, "%s/%u", __func__, (unsigned int)scope);
    return words(owner, key, size, out);
}

nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int size, unsigned long *out,
                                         nvmlAffinityScope_t scope)
{
    ENTER(device);
    char key[KEY];
    name(key, "%s/%u", __func__, (unsigned int)scope);
    return words(owner, key, size, out);
}

/* ---- MIG ---- */

PAIR(nvmlDeviceGetMigMode, unsigned int, "currentMode", "pendingMode")
UINT(nvmlDeviceGetMaxMigDeviceCount, unsigned int)

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *out)
{
    ENTER(device);
    NEED(out);
    for (int i = 0; i < n_migs; i++)
        if (owners[MIG0 + i].parent == owner && owners[MIG0 + i].ci >= 0 && index-- == 0) {
            *out = &owners[MIG0 + i];
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *out)
{
    ENTER(device);
    NEED(out);
    *out = owner >= MIG0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *out)
{
    ENTER(device);
    NEED(out && owner >= MIG0);
    *out = &owners[owners[owner].parent];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *out)
{
    ENTER(device);
    NEED(out && owner >= MIG0);
    *out = (unsigned int)owners[owner].gi;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *out)
{
    ENTER(device);
    NEED(out && owner >= MIG0);
    *out = (unsigned int)owners[owner].ci;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *out)
{
    ENTER(device);
    NEED(out);
    TRY(exists(owner, __func__));
#define PUT(field) out->field = (unsigned int)member(owner, __func__, #field)
    PUT(multiprocessorCount);
    PUT(sharedCopyEngineCount);
    PUT(sharedDecoderCount);
    PUT(sharedEncoderCount);
    PUT(sharedJpegCount);
    PUT(sharedOfaCount);
    PUT(gpuInstanceSliceCount);
    PUT(computeInstanceSliceCount);
#undef PUT
    out->memorySizeMB = member(owner, __func__, "memorySizeMB");
    return NVML_SUCCESS;
}

/* ---- processes ---- */

/* `size` is that of one entry: the first version of the struct ends before the instances. */
static nvmlReturn_t processes(int owner, const char *key, unsigned int *count, void *infos, size_t size)
{
    NEED(count);
    TRY(exists(owner, key));
    unsigned int room = *count;
    *count = length_of(owner, key);
    if (room < *count)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < *count; i++) {
        nvmlProcessInfo_t one = {
            (unsigned int)item_member(owner, key, i, "pid"),
            item_member(owner, key, i, "usedGpuMemory"),
            (unsigned int)item_member(owner, key, i, "gpuInstanceId"),
            (unsigned int)item_member(owner, key, i, "computeInstanceId"),
        };
        memcpy((char *)infos + i * size, &one, size);
    }
    return NVML_SUCCESS;
}

#define PROCESSES(function)                                                                                       \
    nvmlReturn_t function(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *infos)                  \
    {                                                                                                             \
        ENTER(device);                                                                                            \
        return processes(owner, #function "_v3", count, infos, sizeof *infos);                                    \
    }                                                                                                             \
    nvmlReturn_t function##_v2(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos)             \
    {                                                                                                             \
        ENTER(device);                                                                                            \
        return processes(owner, #function "_v3", count, infos, sizeof *infos);                                    \
    }                                                                                                             \
    nvmlReturn_t function##_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos)                \
    {                                                                                                             \
        ENTER(device);                                                                                            \
        return processes(owner, #function "_v3", count, infos, sizeof *infos);                                    \
    }
PROCESSES(nvmlDeviceGetComputeRunningProcesses)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses)

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *out,
                                             unsigned int *count, unsigned long long since)
{
    ENTER(device);
    NEED(count);
    TRY(exists(owner, __func__));
    unsigned int room = *count;
    *count = length_of(owner, __func__);
    if (!out || room < *count)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    if (!*count)
        return NVML_ERROR_NOT_FOUND;
    for (unsigned int i = 0; i < *count; i++) {
        out[i].pid = (unsigned int)item_member(owner, __func__, i, "pid");
        out[i].timeStamp = since + 1;
        out[i].smUtil = (unsigned int)item_member(owner, __func__, i, "smUtil");
        out[i].memUtil = (unsigned int)item_member(owner, __func__, i, "memUtil");
        out[i].encUtil = (unsigned int)item_member(owner, __func__, i, "encUtil");
        out[i].decUtil = (unsigned int)item_member(owner, __func__, i, "decUtil");
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *out)
{
    ENTER(device);
    NEED(out);
    VERSION(out->version, nvmlProcessesUtilizationInfo_v1);
    static const char list[] = "nvmlDeviceGetProcessUtilization";
    TRY(exists(owner, list));
    unsigned int room = out->processSamplesCount;
    out->processSamplesCount = length_of(owner, list);
    if (!out->procUtilArray || room < out->processSamplesCount)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < out->processSamplesCount; i++) {
        nvmlProcessUtilizationInfo_v1_t *one = &out->procUtilArray[i];
        memset(one, 0, sizeof *one);
        one->timeStamp = out->lastSeenTimeStamp + 1;
        one->pid = (unsigned int)item_member(owner, list, i, "pid");
        one->smUtil = (unsigned int)item_member(owner, list, i, "smUtil");
        one->memUtil = (unsigned int)item_member(owner, list, i, "memUtil");
        one->encUtil = (unsigned int)item_member(owner, list, i, "encUtil");
        one->decUtil = (unsigned int)item_member(owner, list, i, "decUtil");
    }
    return NVML_SUCCESS;
}

/* ---- events ---- */

ULL(nvmlDeviceGetSupportedEventTypes)

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    TRY(enter(__func__, -1));
    NEED(set);
    *set = calloc(1, sizeof **set);
    (*set)->seen = __atomic_load_n(&control->events, __ATOMIC_ACQUIRE); /* what was before is not replayed */
    while ((*set)->due < n_dues && dues[(*set)->due].after <= elapsed())
        (*set)->due++;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    ENTER(device);
    NEED(set);
    unsigned long long supported = 0;
    TRY(give_ull(owner, "nvmlDeviceGetSupportedEventTypes", &supported));
    if (types & ~supported)
        return NVML_ERROR_NOT_SUPPORTED;
    set->mask[gpu_of(owner)] |= types;
    return NVML_SUCCESS;
}

static int tell(nvmlEventSet_t set, const struct event *e, nvmlEventData_t *out)
{
    if (e->device < 0 || e->device >= n_devices || !(set->mask[e->device] & e->type))
        return 0;
    out->device = &owners[e->device];
    out->eventType = e->type;
    out->eventData = e->data;
    out->gpuInstanceId = e->gi;
    out->computeInstanceId = e->ci;
    return 1;
}

static nvmlReturn_t wait_for(const char *function, nvmlEventSet_t set, nvmlEventData_t *out, unsigned int milliseconds)
{
    TRY(enter(function, -1));
    NEED(set && out);
    double ends = monotonic() + milliseconds / 1e3;
    for (;;) {
        uint32_t sent = __atomic_load_n(&control->events, __ATOMIC_ACQUIRE);
        while (set->seen != sent)
            if (tell(set, &control->event[set->seen++ % EVENTS], out))
                return NVML_SUCCESS;
        double now = elapsed(), next = INFINITY;
        while (set->due < n_dues && dues[set->due].after <= now)
            if (tell(set, &dues[set->due++].event, out))
                return NVML_SUCCESS;
        if (set->due < n_dues)
            next = (dues[set->due].after - now) / control->speed;
        double left = fmin(ends - monotonic(), next);
        if (ends <= monotonic())
            return NVML_ERROR_TIMEOUT;
        struct timespec at_most = {(time_t)left, (long)((left - floor(left)) * 1e9)};
        syscall(SYS_futex, &control->events, FUTEX_WAIT, sent, &at_most, NULL, 0);
    }
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *out, unsigned int milliseconds)
{
    return wait_for(__func__, set, out, milliseconds);
}

nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *out, unsigned int milliseconds)
{
    return wait_for(__func__, set, out, milliseconds);
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    TRY(enter(__func__, -1));
    NEED(set);
    free(set);
    return NVML_SUCCESS;
}

/* ---- GPM ---- */

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *out)
{
    ENTER(device);
    NEED(out);
    VERSION(out->version, NVML_GPM_SUPPORT_VERSION);
    out->isSupportedDevice = exists(owner, "gpm") == NVML_SUCCESS;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *out)
{
    TRY(enter(__func__, -1));
    NEED(out);
    *out = calloc(1, sizeof **out);
    (*out)->owner = -1;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample)
{
    TRY(enter(__func__, -1));
    NEED(sample);
    free(sample);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample)
{
    ENTER(device);
    NEED(sample);
    TRY(exists(owner, "gpm"));
    *sample = (struct nvmlGpmSample_st){owner, monotonic()};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int gi, nvmlGpmSample_t sample)
{
    ENTER(device);
    NEED(sample && owner < MIG0);
    for (int i = 0; i < n_migs; i++) {
        const struct nvmlDevice_st *mig = &owners[MIG0 + i];
        if (mig->parent != owner || mig->gi != (int)gi)
            continue;
        if (mig->ci < 0) /* an instance without a compute instance */
            return NVML_ERROR_NO_DATA;
        TRY(exists(MIG0 + i, "gpm"));
        *sample = (struct nvmlGpmSample_st){MIG0 + i, monotonic()};
        return NVML_SUCCESS;
    }
    return NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *out)
{
    int known = out && out->sample1 && out->sample2 && out->sample2->owner >= 0;
    TRY(enter(__func__, known ? gpu_of(out->sample2->owner) : -1));
    NEED(out);
    VERSION(out->version, NVML_GPM_METRICS_GET_VERSION);
    /* The older sample comes first, both are of one GPU, and a sample says nothing against itself. */
    NEED(known && out->sample1->owner == out->sample2->owner && out->sample1->at < out->sample2->at);
    NEED(out->numMetrics <= NVML_GPM_METRIC_MAX);
    for (unsigned int i = 0; i < out->numMetrics; i++) {
        nvmlGpmMetric_t *m = &out->metrics[i];
        struct number n = {0};
        char key[KEY];
        name(key, "gpm/%u", m->metricId);
        m->nvmlReturn = number_of(out->sample2->owner, key, &n, NULL);
        m->value = n.d;
        m->metricInfo.shortName = "FAKE";
        m->metricInfo.longName = "A recorded metric";
        m->metricInfo.unit = "";
    }
    return NVML_SUCCESS;
}
