"""How long until a kernel is ready?"""

from rootdk.bench import script

if __name__ == "__main__":
    script.main("compile")
