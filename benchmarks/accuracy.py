""""""

from rootdk.bench import script

if __name__ == "__main__":
    script.main("accuracy")
